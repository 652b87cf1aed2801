"""`insync demo`: real input through a replicated topic, a killed leader, and a check of every byte."""
