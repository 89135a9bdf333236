import numpy as np
import pytest

from phalanx.checks import MAX_SEED, Faults
from phalanx_proto.errors import InvalidExperiment


def test_numpy_numbers_are_numbers() -> None:
    faults = Faults()
    whole = faults.whole("rows", np.int32(7), 1)
    assert (whole, type(whole)) == (7, int)
    assert faults.real("rate", np.float32(0.5), 0.0) == 0.5
    assert faults.seed(np.uint64(MAX_SEED)) == MAX_SEED
    assert faults.flag("shuffle", np.True_) is True
    faults.settle()


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, [1]])
def test_what_is_no_whole_number(value: object) -> None:
    faults = Faults()
    faults.whole("rows", value, 1)
    assert len(faults.problems) == 1
    assert "rows must be a whole number" in faults.problems[0]


@pytest.mark.parametrize("value", [True, "0.1", None, float("nan"), float("inf"), 0.0, -1.0, 1.0])
def test_what_is_no_number_between_0_and_1(value: object) -> None:
    faults = Faults()
    faults.real("rate", value, 0.0, 1.0, open_low=True)
    assert len(faults.problems) == 1


def test_a_seed_has_64_bits() -> None:
    faults = Faults()
    faults.seed(MAX_SEED + 1)
    faults.seed(-1)
    assert len(faults.problems) == 2


def test_a_choice_lists_what_is_allowed() -> None:
    faults = Faults()
    faults.choice("optimizer", "lion", ("sgd", "adam"))
    faults.choice("optimizer", ["sgd"], ("sgd", "adam"))
    assert faults.problems[0] == "optimizer must be one of sgd, adam; not 'lion'"
    assert len(faults.problems) == 2


def test_all_faults_are_raised_together() -> None:
    faults = Faults()
    faults.settle()
    faults.whole("epochs", 0, 1)
    faults.flag("shuffle", 1)
    with pytest.raises(InvalidExperiment) as raised:
        faults.settle()
    assert raised.value.problems == ["epochs must be at least 1, not 0", "shuffle must be True or False, not 1"]
