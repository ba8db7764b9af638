"""Cases: where a subject is looked at, the schedule of them, and the strategies that draw them."""
