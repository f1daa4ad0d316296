//! What would happen: links, servers and players in virtual time.
