"""The methods of ``ddf.exo``, a module for each kind of operation."""
