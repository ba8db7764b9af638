"""The engine of all timings: clocks, slots, blocks, fresh inputs and kept outputs."""
