"""Planning: from the expression or graph that Dask hands a scheduler to the plan that runs."""
