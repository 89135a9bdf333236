"""The coordinator: checks an experiment, admits a group, and drives it in lockstep.

From the ground up, each knowing only those before it:

``cluster`` → ``ssh`` → ``members`` → ``doctor`` → ``enroll``: machines, from a file to a group that can compute.
``checkpoints``, ``lockstep`` → ``runs``: a fit or a simulation on them.
``job_directory`` → ``session`` → ``jobs`` → ``service``: runs one after another, and jobs that outlive who asked.
"""
