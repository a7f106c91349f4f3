"""Tool servers that speak the Model Context Protocol: connections to them, and what they answer."""
