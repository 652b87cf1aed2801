"""Consumer groups: committed logs, decisions, answers, records that members hand out (G1 to G14, GL1 to GL4, GL6)."""
