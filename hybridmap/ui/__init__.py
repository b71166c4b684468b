"""A local page on which one changes a job and sees its plan change; needs the extra ``ui``."""
