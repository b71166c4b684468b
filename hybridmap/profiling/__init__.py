"""From measured rows to a profile folder: tables, the device's card, and what the torch-native engine costs here."""
