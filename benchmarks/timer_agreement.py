"""How far attnbench's medians are from those of ``torch.utils.benchmark``, in alternation.

    python benchmarks/timer_agreement.py [ROUNDS]

Each round takes one short median by either, right after each other and in changing order, so that
the machine's drift meets both alike; more rounds tell more where it is noisy. For calls of a
millisecond and more the ratio should be within 3 % of 1; the last row, of microseconds, says what
the floor is.
"""

from __future__ import annotations

import statistics
import sys

ADDRESSES = ("scaled_dot", "additive", "gaussian")
ROUND_S = 0.1


def interval_of_median(values: list[float]) -> tuple[float, float, float]:
    """The median between the two values that hold it in 95 of 100, whatever is its distribution."""
    from scipy import stats

    ordered = sorted(values)
    below = int(stats.binom.ppf(0.025, len(ordered), 0.5)) - 1
    if below < 0:
        raise SystemExit(f"an interval needs six rounds or more; got {len(ordered)}")
    return ordered[below], statistics.median(ordered), ordered[-1 - below]


def main(rounds: int) -> None:
    import torch
    from torch.utils.benchmark import Timer

    from attnbench.benchmark.bench_case import BenchCase
    from attnbench.benchmark.timed_calls import measured_call
    from attnbench.benchmark.timing.contract import Contract
    from attnbench.benchmark.timing.slots import Timer as Slots
    from attnbench.benchmark.timing.slots import settled
    from attnbench.cases.case import Case
    from attnbench.subject.lookup import resolve

    contract = Contract()
    torch.set_num_threads(contract.threads)
    device = torch.device("cpu")
    points = [(name, Case((1, 4), n, n, 32, 32, 32)) for name in ADDRESSES for n in (128, 256)]
    points.append(("scaled_dot", Case((1,), 4, 4, 4, 4, 4)))
    print("subject        case           ours_ms  torch_ms  ratio (its 95 % interval)")
    for name, case in points:
        (subject,) = resolve(name)
        module, inputs = BenchCase(case).build(subject)
        call = measured_call(subject, module, inputs, "forward")
        timer = Timer("call()", globals={"call": call}, num_threads=contract.threads)
        call()
        with settled(device):
            slots = Slots(call, device, contract)
        pairs = []
        for number in range(rounds):
            takes = {
                "ours": lambda slots=slots: statistics.median(
                    slots.slot().seconds for _ in range(25)
                ),
                "torch": lambda timer=timer: timer.blocked_autorange(min_run_time=ROUND_S).median,
            }
            order = ("ours", "torch") if number % 2 else ("torch", "ours")
            found = {which: takes[which]() for which in order}
            pairs.append((found["ours"], found["torch"]))
        ratios = [ours / theirs for ours, theirs in pairs]
        low, middle, high = interval_of_median(ratios)
        ours, theirs = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        size = f"L=S={case.q_len} E={case.query_size}"
        print(
            f"{name:14} {size:14} {ours:7.3f}  {theirs:8.3f}  {middle:.3f} ({low:.3f}-{high:.3f})"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 101)
