import hashlib
import re
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest
import sklearn.datasets

from phalanx import datasets
from phalanx.dataset import Dataset
from phalanx_proto import philox
from phalanx_proto.errors import InvalidExperiment


def digest(data: Dataset) -> str:
    return hashlib.sha256(data.features.tobytes() + data.targets.tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_bundled_data_equal_their_source(name: str) -> None:
    ours = getattr(datasets, name)()
    theirs = getattr(sklearn.datasets, f"load_{name}")()
    np.testing.assert_array_equal(ours.features, theirs.data)
    np.testing.assert_array_equal(ours.targets, theirs.target)
    assert ours.names == tuple(str(label) for label in theirs.target_names)
    assert (ours.features.dtype, ours.targets.dtype) == (np.float64, np.int32)


@pytest.mark.parametrize("name", ["iris.csv", "digits.csv.gz"])
def test_the_attribution_names_the_very_file(name: str) -> None:
    folder = resources.files("phalanx") / "data"
    found = re.search(rf"`{re.escape(name)}` \| `(\w+)`", (folder / "ATTRIBUTION.md").read_text())
    assert found is not None
    assert found[1] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_bundled_data_need_no_other_package() -> None:
    script = (
        "import sys; from phalanx import datasets; datasets.iris(); datasets.digits();"
        "print([name for name in ('sklearn', 'scipy', 'jax', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_synthetic_is_what_its_words_say() -> None:
    rows, inputs, classes, seed = 50, 3, 4, 9
    data = datasets.synthetic(rows, inputs, classes, seed)
    words = [int(w) - (1 << 31) for w in philox.words(seed, datasets.STREAM_DATA, rows * inputs, lane=0)]
    teacher = [(int(w) >> 23) - 256 for w in philox.words(seed, datasets.STREAM_DATA, inputs * classes, lane=1)]
    for row in range(rows):
        x = words[row * inputs : (row + 1) * inputs]
        scores = [sum(x[i] * teacher[i * classes + c] for i in range(inputs)) for c in range(classes)]
        assert data.features[row].tolist() == [value / (1 << 31) for value in x]
        assert data.targets[row] == scores.index(max(scores))


def test_the_dense_fixture() -> None:
    data = datasets.synthetic(65_536, 64, 4, seed=42)
    assert data.features.shape == (65_536, 64)
    assert data.classes == 4
    assert -1.0 <= data.features.min() < -0.9999
    assert 0.9999 < data.features.max() < 1.0
    assert np.bincount(data.targets).min() > 8_000
    assert digest(data) == "a134777bf2ece7fbc3c61ce125d70e3ce679d100bfc8a3fed6406a8ba589abd4"


def test_synthetic_rows_do_not_depend_on_how_many_are_made() -> None:
    long, short = datasets.synthetic(300_000, 8, 3, seed=1), datasets.synthetic(1_000, 8, 3, seed=1)
    np.testing.assert_array_equal(long.features[:1_000], short.features)
    np.testing.assert_array_equal(long.targets[:1_000], short.targets)
    assert not np.array_equal(short.features, datasets.synthetic(1_000, 8, 3, seed=2).features)


def test_all_admission_limits_are_listed_at_once() -> None:
    with pytest.raises(InvalidExperiment) as raised:
        datasets.synthetic(1_000_001, 4_097, 257, seed=1)
    assert [problem.split(" ", 1)[1].split(" are ")[0] for problem in raised.value.problems] == [
        "rows",
        "inputs",
        "classes",
        "feature values (rows * inputs)",
        "teacher work units (rows * inputs * classes)",
    ]


@pytest.mark.parametrize(
    ("rows", "inputs", "classes", "words"),
    [
        (1_000_001, 1, 2, "1,000,001 rows are more than the 1,000,000 admitted"),
        (1, 4_097, 2, "4,097 inputs are more than the 4,096 admitted"),
        (1, 1, 257, "257 classes are more than the 256 admitted"),
        (1, 1, 1, "classes must be at least 2"),
        (1_000_000, 9, 2, "feature values"),
        (1_000_000, 8, 63, "504,000,000 teacher work units"),
        (0, 1, 2, "rows must be at least 1"),
    ],
)
def test_each_admission_limit(rows: int, inputs: int, classes: int, words: str) -> None:
    with pytest.raises(InvalidExperiment, match=words) as raised:
        datasets.synthetic(rows, inputs, classes, seed=1)
    assert len(raised.value.problems) == 1


def test_the_largest_admitted_widths_are_made() -> None:
    data = datasets.synthetic(400, 4_096, 256, seed=1)
    assert (data.features.shape, data.classes) == ((400, 4_096), 256)


def test_procedural_is_what_its_words_say() -> None:
    data = datasets.procedural(40, seed=7)
    words = [int(w) - (1 << 31) for w in philox.words(7, datasets.STREAM_DATA, 40 * 12, lane=2)]
    for row in range(40):
        drawn = words[row * 12 : row * 12 + 12]
        score = sum(a * b for a, b in zip(drawn, [5, -4, 3, -2, 2, -1, 1, 0, 1, 1, 1, 1], strict=True)) + (1 << 30)
        assert data.features[row].tolist() == [value / (1 << 31) for value in drawn[:8]]
        assert data.targets[row] == (score > 0)


def test_procedural_fixture() -> None:
    data = datasets.procedural(100_000, seed=42)
    assert data.classes == 2
    assert 0.5 < data.targets.mean() < 0.6
    np.testing.assert_array_equal(datasets.procedural(10, seed=42).features, data.features[:10])
    assert digest(data) == "949a1a2fdd8afa28861009dad59bb121388e4a425b40c36538caf56d816a9216"


def test_procedural_labels_are_noisy_but_learnable() -> None:
    data = datasets.procedural(20_000, seed=3)
    clean = data.features @ np.array([5, -4, 3, -2, 2, -1, 1, 0]) + 0.5 > 0
    assert 0.85 < (clean == data.targets).mean() < 0.97


@pytest.mark.parametrize("samples", [0, 10_000_001, True, 1.0])
def test_procedural_refuses(samples: int) -> None:
    with pytest.raises(InvalidExperiment, match="samples must be"):
        datasets.procedural(samples, seed=1)


def test_one_sample_still_has_two_classes() -> None:
    assert datasets.procedural(1, seed=1).classes == 2
