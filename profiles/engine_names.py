"""Where a profile folder keeps the engine files of the torch-native engine."""

FOLDER = "engines"
VERSION = "0.1"
TRAINING, GENERATION = f"torch-native@{VERSION}.yaml", f"torch-native-generate@{VERSION}.yaml"
