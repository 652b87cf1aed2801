"""The controller: who leads, which topics there are, and the records of the metadata store that say so."""
