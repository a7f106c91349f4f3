"""A page that follows a session whose run goes on, served on loopback."""
