"""The click commands, one module each. At import they load click and nothing heavier."""
