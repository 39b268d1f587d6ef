"""Which version answers: what is registered, what is resident, what a reference means now."""
