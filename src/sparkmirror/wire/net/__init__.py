"""Sockets: connections, frames, and limits on what is read from them."""
