"""A simulated cluster behind the waist: virtual time, faults, stores."""
