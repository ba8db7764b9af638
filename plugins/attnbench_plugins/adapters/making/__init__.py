"""How somebody's class is made: by the names of its arguments, defaults, types and trials."""
