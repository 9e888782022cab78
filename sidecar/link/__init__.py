"""The sidecar's side of the link: the server, its connections, the handler interface, and the client."""
