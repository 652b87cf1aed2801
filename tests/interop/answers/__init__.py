"""Jobs of many requests, done at two clusters: what each is answered is compared field by field."""
