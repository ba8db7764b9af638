"""The asv suite: one benchmark class per subject, for this repository and for any other.

A file ``benchmarks/attention.py`` is enough (not ``benchmarks/__init__.py``, where asv looks for
names only once it has imported everything)::

    from attnbench import asv

    asv.fill(globals())                           # every installed subject
    asv.fill(globals(), ["my_score", "scaled_dot"])  # or only these
    asv.fill(globals(), baseline="scaled_dot/fused")  # ratios to another subject

asv stores numbers by the name of a benchmark and the position of its parameters. A class is
therefore named after its subject, and new items are only appended to :data:`CASES`,
:data:`LAYER_CASES` and :data:`DEVICES`, so that numbers stay with their subject when plugins come
and go. A subject, device or contract that an older commit does not have is ``n/a`` there.

Each process gives one sample, and a benchmark has ten. asv tests the difference of two commits by
their samples, which it stores only with ``asv run --record-samples`` or ``asv continuous``. Without
them, ``asv compare`` compares medians by ``--factor`` alone. ``track_ratio`` is the time over that
of the baseline, ``scaled_dot`` (for a layer, ``causal_attention``), taken in turn in the same
process.
Noise that is common to both cancels, so it can be compared between commits that were measured on
different days. Layers have their own cases, :data:`LAYER_CASES`, and ``track_cache_bytes``.

Set ``PYTHONHASHSEED`` in ``matrix.env_nobuild`` of ``asv.conf.json``, so that asv fixes and records
it. Importing this module runs no tensor operation, so that ``asv run --launch-method=forkserver``
may fork after it.
"""

from attnbench.benchmark.asv_suite import CASES as CASES
from attnbench.benchmark.asv_suite import DEVICES as DEVICES
from attnbench.benchmark.asv_suite import LAYER_CASES as LAYER_CASES
from attnbench.benchmark.asv_suite import class_name as class_name
from attnbench.benchmark.asv_suite import fill as fill
