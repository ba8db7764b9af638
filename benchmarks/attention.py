"""One benchmark class a subject, filled in by attnbench."""

from attnbench import asv

asv.fill(globals())
