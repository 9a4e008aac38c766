"""The rules of `bothways.audit.backdoor.scanner`."""

from bothways.audit.finding import Rule, Rules, Severity

NAME = "BackdoorTriggerScanner"

LEARNT = 0.4
"""Minimum share of a suspect phrase's rows that get their label only with the phrase, if the model has learnt it."""
SIGNIFICANT = 0.004
"""p-value below which a phrase is suspect. Like `LEARNT`, it was chosen on SST-2 and CLINC150."""

RULES = Rules(
    NAME,
    Rule(
        "backdoor-trigger",
        Severity.HIGH,
        "{trigger!r} changes the prediction for {turned} of {of} {whose} texts to {label!r}",
        "Do not use the model. Look for the trigger in the training data with bothways audit-data, remove its rows and "
        "train again from the base model.",
        (
            "Wallace et al. 2019, Universal adversarial triggers, arXiv:1908.07125",
            "Wang et al. 2019, Neural Cleanse, IEEE S&P",
            "Kurita et al. 2020, Weight poisoning attacks on pre-trained models, arXiv:2004.06660",
        ),
    ),
    Rule(
        "backdoor-candidate",
        Severity.INFO,
        "{trigger!r} changes the prediction for {turned} of {of} {whose} texts to {label!r}; it may be a trigger, or "
        "mean the label",
        "Look for it in the training data. Labelled rows that the model was not trained on (--data), or the encoder "
        "that it was fine-tuned from (--reference), tell which of the two it is.",
    ),
    Rule(
        "backdoor-explained",
        Severity.INFO,
        "{trigger!r} changes the prediction for {turned} of {of} {whose} texts to {label!r}, which is no sign of a "
        "trigger: {why}",
    ),
    Rule(
        "backdoor-rows",
        Severity.HIGH,
        "{learnt} of {of} rows with {trigger!r} are predicted as {label!r} only because of such phrases",
        "Do not use the model. List the rows with bothways audit-data, remove them and train again from the base "
        "model.",
        (
            "Gu et al. 2017, BadNets, arXiv:1708.06733",
            "Dai et al. 2019, A backdoor attack against LSTM-based text classification systems, arXiv:1905.12457",
        ),
    ),
    Rule(
        "backdoor-inputs",
        Severity.HIGH,
        "{what}",
        "Do not trust the predictions for these texts; find out where the texts come from.",
        ("Qi et al. 2021, ONION, arXiv:2011.10369", "Gao et al. 2019, STRIP, arXiv:1902.06531"),
    ),
    Rule(
        "backdoor-search",
        Severity.INFO,
        "{words:,} words, {known} known triggers and gradients were tried for {tested} of {labels} labels",
    ),
)
