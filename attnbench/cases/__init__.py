"""Cases at which subjects are checked, their schedule, and the strategies that draw them."""
