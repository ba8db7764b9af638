"""One small change of a subject's source by which what failed holds, as a plugin of attnbench."""
