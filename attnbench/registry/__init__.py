"""The registry: addresses, what plugins are installed, and the specs that they bring. No torch."""
