"""A failing program as lines of plain torch, which end with an assertion that fails."""

from __future__ import annotations

from attnbench.cases.case import Case
from attnbench.checking.evidence.untaped import unsettling
from attnbench.invariants.layers.cache_programs import MOST_ROWS, Step
from attnbench.invariants.layers.program_stage import TOKENS, FoundError
from attnbench.subject.layer import LayerSubject

__all__ = ["lines_of"]


def lines_of(subject: LayerSubject, case: Case, found: FoundError) -> list[str]:
    """The lines that show again what a program found."""
    writer = _Writer(subject, case, found)
    for step in found.program[:-1]:
        writer.write(step)
    writer.end(found.program[-1])
    return writer.lines


class _Writer:
    def __init__(self, subject: LayerSubject, case: Case, found: FoundError) -> None:
        self.subject, self.found = subject, found
        self.padded = any(any(s.rows) for s in found.program if s.kind == "begin")
        self.tracks: list[tuple[int, bool]] = []
        self.column = 0
        place, last = found.place, found.program[-1]
        self.joined = place is not None and last.kind == "append" and -place[1] > last.count
        size, dtype = case.query_size, f"torch.{case.dtype}"
        names = subject.constant_parameters
        self.lines = [
            "torch.set_grad_enabled(False)",
            f"torch.manual_seed({case.seed})",
            f"module = make({size})",
            *([unsettling(names)] if names else ()),
            f"module = module.to({case.device!r}, {dtype}).eval()",
            "fresh = copy.deepcopy(module)",
            f"generator = torch.Generator().manual_seed({case.seed})",
            f"tokens = torch.randn({MOST_ROWS}, {TOKENS}, {size}, generator=generator, "
            "dtype=torch.float64)",
            f"tokens = tokens.to({case.device!r}, {dtype})",
            *(["outputs = []"] if self.joined else []),
            "",
            "",
            "def call(module, hidden, cache=None, mask=None):",
            "    given = {} if cache is None else {'cache': cache}",
            "    given |= {} if mask is None else {'padding_mask': mask}",
            "    result = module(hidden, **given)",
            "    return result if isinstance(result, tuple) else (result, cache)",
            "",
            "",
            "def changed(operation, cache, argument):",
            "    try:",
            "        given = operation(cache, argument)",
            "    except NotImplementedError:",
            "        return cache, False",
            "    return (cache if given is None else given), True",
            "",
            "",
        ]

    def write(self, step: Step) -> None:
        """The lines of one step."""
        t = step.track
        match step.kind:
            case "begin":
                t = len(self.tracks)
                self.tracks.append((step.count, bool(step.rows)))
                self.lines.append(f"cache_{t} = new(module, {step.count})")
                self.lines.append(f"seen_{t} = tokens[:{step.count}, :0]")
                if step.rows:
                    self.lines.append(f"pads_{t} = torch.tensor({list(step.rows)})")
            case "append":
                self._chunk(step, f"seen_{t}.shape[0]")
                self.lines.append(f"seen_{t} = torch.cat([seen_{t}, hidden], 1)")
                mask = ""
                if self.tracks[t][1]:
                    slots = f"torch.arange(seen_{t}.shape[1])"
                    self.lines.append(f"mask_{t} = {slots} >= pads_{t}[:, None]")
                    mask = f", mask_{t}"
                self.lines.append(f"output, cache_{t} = call(module, hidden, cache_{t}{mask})")
                if self.joined:
                    self.lines.append("outputs.append(output)")
            case "select":
                index = f"torch.tensor({list(step.rows)})"
                self.lines.append(f"cache_{t}, done = changed(select, cache_{t}, {index})")
                self.lines.append(f"seen_{t} = seen_{t}[{list(step.rows)}] if done else seen_{t}")
                if self.tracks[t][1]:
                    self.lines.append(
                        f"pads_{t} = pads_{t}[{list(step.rows)}] if done else pads_{t}"
                    )
            case "crop":
                self.lines.append(f"cache_{t}, done = changed(crop, cache_{t}, {step.count})")
                self.lines.append(f"seen_{t} = seen_{t}[:, :{step.count}] if done else seen_{t}")
            case "fork":
                other = len(self.tracks)
                self.tracks.append(self.tracks[t])
                self.lines.append(f"cache_{other} = copy.deepcopy(cache_{t})")
                self.lines.append(f"seen_{other} = seen_{t}")
                if self.tracks[t][1]:
                    self.lines.append(f"pads_{other} = pads_{t}")
            case "without":
                self._chunk(step, "2")
                self.lines.append("output, _ = call(module, hidden)")

    def _chunk(self, step: Step, rows: str) -> None:
        if self.column + step.count > TOKENS:
            self.column = 0
        start, self.column = self.column, self.column + step.count
        self.lines.append(f"hidden = tokens[:{rows}, {start}:{self.column}].clone()")

    def end(self, step: Step) -> None:
        """The last step, and the comparison that fails."""
        if self.found.place is None:
            if "length(cache)" in self.found.message:
                self.write(step)
                t = step.track if step.kind != "begin" else len(self.tracks) - 1
                self.lines += [
                    f"said, held = length(cache_{t}), seen_{t}.shape[1]",
                    'print("length(cache) =", said, "but should be", held)',
                    "assert said == held",
                ]
                return
            start = len(self.lines)
            self.write(step)
            last = self.lines[start:]
            self.lines[start:] = [
                "try:",
                *(f"    {line}" for line in last),
                "except Exception as error:",
                '    raise AssertionError(f"raised {type(error).__name__}: {error}") from error',
            ]
            return
        self.write(step)
        t = step.track
        row, back, feature = self.found.place
        if step.kind == "without":
            self.lines.append("expected, _ = call(fresh, hidden)")
            expected_row = row
        elif self.tracks[t][1] and self.alone:
            self.lines.append(f"alone = seen_{t}[{row}:{row + 1}, pads_{t}[{row}]:]")
            self.lines.append("expected, _ = call(fresh, alone)")
            expected_row = 0
        else:
            mask = f", None, mask_{t}" if self.tracks[t][1] else ""
            self.lines.append(f"expected, _ = call(fresh, seen_{t}{mask})")
            expected_row = row
        if self.joined:
            self.lines.append("output = torch.cat(outputs, 1)")
        self.lines += [
            f"got = output[{row}, {back}, {feature}].item()",
            f"expected = expected[{expected_row}, {back}, {feature}].item()",
            'print("got", got, "but should be", expected)',
            f"assert abs(got - expected) <= {self.found.tolerance:.6g}",
        ]

    @property
    def alone(self) -> bool:
        """Whether it is the row alone that an output was held against."""
        return "the row alone" in self.found.message
