"""Events of clients, for topics below `$SYS/broker/events/` and for hooks."""
