"""The families of published encoders, as data."""

import copyreg
from collections.abc import Iterator, Mapping

from bothways.errors import UnknownModel
from bothways.families.family import Family, Published
from bothways.families.stored_heads import CheckpointHead, HeadName
from bothways.lazy import imported

_HOMES = {
    "bert": "bothways.families.bert:BERT",
    "roberta": "bothways.families.roberta:ROBERTA",
    "xlm-roberta": "bothways.families.roberta:XLM_ROBERTA",
    "camembert": "bothways.families.roberta:CAMEMBERT",
    "distilbert": "bothways.families.distilbert:DISTILBERT",
    "electra": "bothways.families.electra:ELECTRA",
    "albert": "bothways.families.albert:ALBERT",
    "deberta": "bothways.families.deberta:DEBERTA",
    "deberta-v2": "bothways.families.deberta:DEBERTA_V2",
    "xlnet": "bothways.families.xlnet:XLNET",
    "modernbert": "bothways.families.modernbert:MODERNBERT",
}


class _Families(Mapping[str, Family]):
    """The families by model type; each is imported when it is first used, since opening a model needs one."""

    def __getitem__(self, model_type: str) -> Family:
        family: Family = imported(_HOMES[model_type])
        return family

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


FAMILIES: Mapping[str, Family] = _Families()


def family_of(model_type: object) -> Family:
    """Return the family that a ``config.json`` names."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UnknownModel(
            f"config.json must name one of the families {', '.join(FAMILIES)} as its model_type, "
            f"but it names {model_type!r}."
        )
    return FAMILIES[model_type]


# By their names: the tables of weights hold functions that have none.
copyreg.pickle(Family, lambda family: (family_of, (family.model_type,)))

__all__ = ["FAMILIES", "CheckpointHead", "Family", "HeadName", "Published", "family_of"]
