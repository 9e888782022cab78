"""The sidecar's end of the link: the server, its connections, the handler interface, and the client."""
