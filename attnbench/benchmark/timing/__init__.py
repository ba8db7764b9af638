"""The engine of all timings: clocks, slots, blocks, fresh inputs and kept outputs.

It imports nothing but torch and itself, relatively: the processes of ``attnbench compare`` load it
by its path, into environments with another attnbench or none.
"""
