"""Consumer groups: committed logs, decisions, answers, and records that members hand out."""
