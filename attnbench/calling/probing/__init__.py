"""What small calls show of a callee, where its signature leaves it open."""
