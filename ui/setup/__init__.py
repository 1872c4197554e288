"""What a session is set to, under the model's name in the bar: the model and its adapters, sampling, form, tools."""
