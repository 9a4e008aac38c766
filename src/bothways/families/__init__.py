"""The families of published encoders, as data."""

import copyreg

from bothways.errors import UnknownModel
from bothways.families.albert import ALBERT
from bothways.families.bert import BERT
from bothways.families.deberta import DEBERTA, DEBERTA_V2
from bothways.families.distilbert import DISTILBERT
from bothways.families.electra import ELECTRA
from bothways.families.family import Family, Published
from bothways.families.modernbert import MODERNBERT
from bothways.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from bothways.families.stored_heads import CheckpointHead, HeadName
from bothways.families.xlnet import XLNET

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        DISTILBERT,
        ELECTRA,
        ALBERT,
        DEBERTA,
        DEBERTA_V2,
        XLNET,
        MODERNBERT,
    )
}


def family_of(model_type: object) -> Family:
    """Return the family that a ``config.json`` names.

    Raises:
        UnknownModel: No such family; the message lists the ones there are.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UnknownModel(
            f"config.json must name one of the families {', '.join(FAMILIES)} as its model_type, "
            f"but it names {model_type!r}."
        )
    return FAMILIES[model_type]


# By their names: the tables of weights hold functions that have none.
copyreg.pickle(Family, lambda family: (family_of, (family.model_type,)))

__all__ = ["FAMILIES", "CheckpointHead", "Family", "HeadName", "Published", "family_of"]
