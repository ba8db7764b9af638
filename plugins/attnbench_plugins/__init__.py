"""The built-in plugins: what is scored, checked, adapted, compared, formatted and begun."""
