"""An inference server, request by request. Only the validation against published serving figures asks this."""
