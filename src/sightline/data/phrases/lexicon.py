"""Words of the built-in corpus: English, German, and what decides between two German words for one English.

Tables are read by column. An English word with two entries is ambiguous: `bat` is a `Fledermaus` or a `Schläger`,
`miss` is `vermissen` or `verpassen`, `eat` is `essen` or `fressen`; the classes of nouns decide. German inflection
follows the lexicon.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

GRAMMAR_VERSION = 1  # raised with every change that gives other sentences: tokenized corpora are kept by it


class Noun(NamedTuple):
    """A noun: both numbers in both languages, its German gender and what kind of thing it is."""

    singular: str
    plural: str
    german: str
    german_plural: str
    gender: str  # m, f, n
    pronoun: str  # he, she, it
    kinds: frozenset[str]


class Verb(NamedTuple):
    """A verb: its English and German forms, its case, and which kinds of subject and object it takes."""

    base: str
    third: str
    past: str
    participle: str
    particle: str  # "up" of "pick up", or ""
    german: str
    german_third: str
    german_past: str
    german_participle: str
    prefix: str  # "ab" of "abholen", which is separated in a main clause, or ""
    auxiliary: str  # haben or sein
    case: str  # of the object: acc, dat; "" without one
    subject: str
    object: str
    polarity: int  # what the clause says of its object: 1 good, -1 bad


class Adjective(NamedTuple):
    """An adjective: as a predicate and as the stem before an ending."""

    english: str
    german: str
    stem: str
    kinds: frozenset[str]
    polarity: int


class Adverbial(NamedTuple):
    """A fixed phrase: English words with tags, German words, and links between them (from 0)."""

    english: tuple[str, ...]
    tags: tuple[str, ...]
    german: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    tenses: frozenset[str]  # that it goes with


# singular plural, German singular plural, gender, pronoun, kinds
_NOUNS = """
man men Mann Männer m he person animate
woman women Frau Frauen f she person animate
child children Kind Kinder n it person animate
girl girls Mädchen Mädchen n she person animate
teacher teachers Lehrer Lehrer m he person animate
doctor doctors Arzt Ärzte m he person animate
cook cooks Koch Köche m he person animate
queen queens Königin Königinnen f she person animate
king kings König Könige m he person animate
sister sisters Schwester Schwestern f she person animate
brother brothers Bruder Brüder m he person animate
guest guests Gast Gäste m he person animate
ruler rulers Herrscher Herrscher m he person animate
dog dogs Hund Hunde m it animal animate
cat cats Katze Katzen f it animal animate
horse horses Pferd Pferde n it animal animate
bird birds Vogel Vögel m it animal animate
mouse mice Maus Mäuse f it animal animate
cow cows Kuh Kühe f it animal animate
pig pigs Schwein Schweine n it animal animate
fox foxes Fuchs Füchse m it animal animate
snake snakes Schlange Schlangen f it animal animate
bat bats Fledermaus Fledermäuse f it animal animate
seal seals Robbe Robben f it animal animate
crane cranes Kranich Kraniche m it animal animate
car cars Auto Autos n it thing
table tables Tisch Tische m it thing
lamp lamps Lampe Lampen f it thing lit
bag bags Tasche Taschen f it thing carried
box boxes Kiste Kisten f it thing carried
bicycle bicycles Fahrrad Fahrräder n it thing carried
chair chairs Stuhl Stühle m it thing carried
watch watches Uhr Uhren f it thing
book books Buch Bücher n it thing
key keys Schlüssel Schlüssel m it thing
letter letters Brief Briefe m it thing
picture pictures Bild Bilder n it thing
door doors Tür Türen f it thing
saw saws Säge Sägen f it thing
bat bats Schläger Schläger m it thing
seal seals Siegel Siegel n it thing
crane cranes Kran Kräne m it thing
ruler rulers Lineal Lineale n it thing
room rooms Zimmer Zimmer n it bookable lit
train trains Zug Züge m it bookable vehicle
ferry ferries Fähre Fähren f it bookable vehicle
bus buses Bus Busse m it bookable vehicle
plant plants Pflanze Pflanzen f it green
tree trees Baum Bäume m it green
flower flowers Blume Blumen f it green
soup soups Suppe Suppen f it food
potato potatoes Kartoffel Kartoffeln f it food
egg eggs Ei Eier n it food
cake cakes Kuchen Kuchen m it food
school schools Schule Schulen f it firm
company companies Firma Firmen f it firm
hotel hotels Hotel Hotels n it firm bookable
"""

# base third past participle particle, German infinitive third past participle prefix auxiliary case,
# subject object polarity; "-" where there is none, "any" for every kind
_VERBS = """
see sees saw seen - sehen sieht sah gesehen - haben acc animate any 0
find finds found found - finden findet fand gefunden - haben acc animate any 0
draw draws drew drawn - zeichnen zeichnet zeichnete gezeichnet - haben acc person any 0
watch watches watched watched - beobachten beobachtet beobachtete beobachtet - haben acc animate any 0
describe describes described described - beschreiben beschreibt beschrieb beschrieben - haben acc person any 0
know knows knew known - kennen kennt kannte gekannt - haben acc person any 0
love loves loved loved - lieben liebt liebte geliebt - haben acc animate any 1
like likes liked liked - mögen mag mochte gemocht - haben acc animate any 1
admire admires admired admired - bewundern bewundert bewunderte bewundert - haben acc person any 1
praise praises praised praised - loben lobt lobte gelobt - haben acc person animate 1
trust trusts trusted trusted - vertrauen vertraut vertraute vertraut - haben dat animate animate 1
hate hates hated hated - hassen hasst hasste gehasst - haben acc animate any -1
fear fears feared feared - fürchten fürchtet fürchtete gefürchtet - haben acc animate any -1
despise despises despised despised - verachten verachtet verachtete verachtet - haben acc person any -1
criticize criticizes criticized criticized - kritisieren kritisiert kritisierte kritisiert - haben acc person person -1
feed feeds fed fed - füttern füttert fütterte gefüttert - haben acc person animal 0
visit visits visited visited - besuchen besucht besuchte besucht - haben acc animate animate 0
greet greets greeted greeted - grüßen grüßt grüßte gegrüßt - haben acc person animate 0
meet meets met met - treffen trifft traf getroffen - haben acc animate animate 0
help helps helped helped - helfen hilft half geholfen - haben dat person animate 0
thank thanks thanked thanked - danken dankt dankte gedankt - haben dat person person 0
miss misses missed missed - vermissen vermisst vermisste vermisst - haben acc animate animate 0
miss misses missed missed - verpassen verpasst verpasste verpasst - haben acc person vehicle 0
call calls called called - rufen ruft rief angerufen an haben acc person person 0
invite invites invited invited - laden lädt lud eingeladen ein haben acc person person 0
pick picks picked picked up holen holt holte abgeholt ab haben acc person animate 0
repair repairs repaired repaired - reparieren repariert reparierte repariert - haben acc person thing 0
buy buys bought bought - kaufen kauft kaufte gekauft - haben acc person thing 0
sell sells sold sold - verkaufen verkauft verkaufte verkauft - haben acc person thing 0
steal steals stole stolen - stehlen stiehlt stahl gestohlen - haben acc person thing 0
throw throws threw thrown away werfen wirft warf weggeworfen weg haben acc person thing 0
bring brings brought brought back bringen bringt brachte zurückgebracht zurück haben acc person thing 0
book books booked booked - buchen bucht buchte gebucht - haben acc person bookable 0
plant plants planted planted - pflanzen pflanzt pflanzte gepflanzt - haben acc person green 0
cook cooks cooked cooked - kochen kocht kochte gekocht - haben acc person food 0
eat eats ate eaten - essen isst aß gegessen - haben acc person food 0
eat eats ate eaten - fressen frisst fraß gefressen - haben acc animal food 0
run runs ran run - leiten leitet leitete geleitet - haben acc person firm 0
run runs ran run - laufen läuft lief gelaufen - sein - animate - 0
sleep sleeps slept slept - schlafen schläft schlief geschlafen - haben - animate - 0
work works worked worked - arbeiten arbeitet arbeitete gearbeitet - haben - animate - 0
laugh laughs laughed laughed - lachen lacht lachte gelacht - haben - person - 0
dance dances danced danced - tanzen tanzt tanzte getanzt - haben - animate - 0
sing sings sang sung - singen singt sang gesungen - haben - animate - 0
wait waits waited waited - warten wartet wartete gewartet - haben - animate - 0
arrive arrives arrived arrived - kommen kommt kam angekommen an sein - animate - 0
wake wakes woke woken up wachen wacht wachte aufgewacht auf sein - animate - 0
"""

# what is said, known, ...: verbs before a clause with "that"
_SAYING = """
say says said said - sagen sagt sagte gesagt - haben - person - 0
know knows knew known - wissen weiß wusste gewusst - haben - person - 0
believe believes believed believed - glauben glaubt glaubte geglaubt - haben - person - 0
hear hears heard heard - hören hört hörte gehört - haben - animate - 0
"""

# English, German predicate, German stem, polarity, kinds
_ADJECTIVES = """
old alt alt 0 person animal thing firm green
small klein klein 0 person animal thing bookable green
big groß groß 0 animal thing vehicle green firm
young jung jung 0 person animal
tired müde müd 0 person animal
hungry hungrig hungrig 0 person animal
strong stark stark 0 person animal
red rot rot 0 thing vehicle
blue blau blau 0 thing vehicle
new neu neu 0 thing vehicle firm
expensive teuer teur 0 thing bookable food
wooden hölzern hölzern 0 thing
light leicht leicht 0 carried
light hell hell 0 lit
friendly freundlich freundlich 1 person animal
clever klug klug 1 person animal
happy glücklich glücklich 1 person animal
beautiful schön schön 1 person animal thing bookable green firm
wonderful wunderbar wunderbar 1 person animal thing bookable green food firm
useful nützlich nützlich 1 thing firm
sad traurig traurig -1 person animal
ugly hässlich hässlich -1 animal thing bookable green
terrible schrecklich schrecklich -1 person animal thing bookable food firm
dangerous gefährlich gefährlich -1 person animal thing
useless nutzlos nutzlos -1 thing firm
"""

# adjectives that only one of two meanings can have; "light" and what is common to both would not tell them apart
TELLING = {"animate": ("hungry", "tired", "friendly", "clever", "sad"), "thing": ("wooden", "red", "useless", "new")}

# English words with tags, German words, links, tenses
_TIMES = """
today/ADV | heute | 0-0 | present past perfect future
now/ADV | jetzt | 0-0 | present
yesterday/ADV | gestern | 0-0 | past
tomorrow/ADV | morgen | 0-0 | future
soon/ADV | bald | 0-0 | future
every/DET day/NOUN | jeden Tag | 0-0 1-1 | present past
last/ADJ week/NOUN | letzte Woche | 0-0 1-1 | past
at/ADP night/NOUN | nachts | 0-0 1-0 | present past
"""
_FREQUENCIES = """
often/ADV | oft | 0-0 | present past perfect
always/ADV | immer | 0-0 | present past perfect
sometimes/ADV | manchmal | 0-0 | present past
"""
_PLACES = """
in/ADP the/DET garden/NOUN | im Garten | 0-0 1-0 2-1 | present past perfect future
in/ADP the/DET city/NOUN | in der Stadt | 0-0 1-1 2-2 | present past perfect future
in/ADP the/DET kitchen/NOUN | in der Küche | 0-0 1-1 2-2 | present past perfect future
in/ADP the/DET bank/NOUN | in der Bank | 0-0 1-1 2-2 | present past perfect future
on/ADP the/DET bank/NOUN | am Ufer | 0-0 1-0 2-1 | present past perfect future
on/ADP the/DET bridge/NOUN | auf der Brücke | 0-0 1-1 2-2 | present past perfect future
behind/ADP the/DET house/NOUN | hinter dem Haus | 0-0 1-1 2-2 | present past perfect future
at/ADP the/DET station/NOUN | am Bahnhof | 0-0 1-0 2-1 | present past perfect future
at/ADP home/NOUN | zu Hause | 0-0 1-1 | present past perfect future
"""


def _words(text: str) -> list[str]:
    return text.split()


FIRST_NAMES = {
    "f": _words("Anna Clara Elif Emma Greta Ida Julia Laura Lena Maria Mia Nora Olga Petra Sofia"),
    "m": _words("Ali Anton Bruno David Emil Felix Hans Igor Jonas Karl Leon Max Otto Paul Tom"),
}
# surnames are put together from these, thousands of them: to be copied, not known
NAME_PARTS = (
    _words(
        "Al Bar Ber Bor Dal Dor El Far Fen Gar Gol Hal Hor Jan Kal Ker Kol Lam Lor Mar Mer Mor Nor Pal Per Ros Sar Sel "
        "Tal Tor Val Ver Wal Wen Zan"
    ),
    ["", *_words("a e i o an en in on da ka li ma ne ri so ta")],
    _words("berg by dal den ford hof ka land ler lin mann mov nau ner rad ric sen ski son stein ton vik witz zer"),
)


def _rows(table: str) -> list[list[str]]:
    return [["" if cell == "-" else cell for cell in line.split()] for line in table.strip().splitlines()]


@cache
def nouns() -> tuple[Noun, ...]:
    """Every noun."""
    return tuple(Noun._make([*row[:6], frozenset(row[6:])]) for row in _rows(_NOUNS))


def _verb(row: list[str]) -> Verb:
    return Verb._make([*row[:14], int(row[14])])


@cache
def verbs() -> tuple[Verb, ...]:
    """Every verb with an object or with none."""
    return tuple(map(_verb, _rows(_VERBS)))


@cache
def saying() -> tuple[Verb, ...]:
    """Verbs before a clause with `that`."""
    return tuple(map(_verb, _rows(_SAYING)))


@cache
def adjectives() -> tuple[Adjective, ...]:
    """Every adjective."""
    return tuple(Adjective._make([*row[:3], frozenset(row[4:]), int(row[3])]) for row in _rows(_ADJECTIVES))


def _phrases(table: str) -> tuple[Adverbial, ...]:
    entries = []
    for line in table.strip().splitlines():
        english, german, links, tenses = (cell.split() for cell in line.split("|"))
        words, tags = zip(*(word.split("/") for word in english), strict=True)
        pairs = tuple((int(i), int(j)) for i, j in (link.split("-") for link in links))
        entries.append(Adverbial(words, tags, tuple(german), pairs, frozenset(tenses)))
    return tuple(entries)


_ADVERBIALS = {"time": _TIMES, "frequency": _FREQUENCIES, "place": _PLACES}


@cache
def adverbials(kind: str, tense: str) -> tuple[Adverbial, ...]:
    """The adverbials of a kind (time, frequency, place) that go with a tense."""
    return tuple(each for each in _phrases(_ADVERBIALS[kind]) if tense in each.tenses)


@cache
def nouns_of(kind: str) -> tuple[Noun, ...]:
    """The nouns of a kind."""
    return tuple(noun for noun in nouns() if kind in noun.kinds)


@cache
def adjectives_for(kinds: frozenset[str]) -> tuple[Adjective, ...]:
    """The adjectives that a noun of these kinds can have."""
    return tuple(each for each in adjectives() if each.kinds & kinds)


@cache
def verbs_with(opinion: bool) -> tuple[Verb, ...]:
    """The verbs that say something good or bad of their object, or those that do not."""
    return tuple(verb for verb in verbs() if bool(verb.polarity) == opinion)


@cache
def ambiguous() -> frozenset[str]:
    """English nouns with two meanings."""
    words = [noun.singular for noun in nouns()]
    return frozenset(word for word in words if words.count(word) > 1)


# by case: masculine, feminine, neuter, plural
_DEFINITE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
_ENDINGS = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}  # of dieser, jener, ...
_MIXED = {"nom": " e  e", "acc": "en e  e", "dat": "em er em en"}  # of ein, kein, mein
_WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}  # of adjectives behind der, dieser
_BEHIND_MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}  # behind ein, kein, mein
_BARE_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}  # behind a number, or nothing
_PRONOUNS = {"nom": "er sie es sie", "acc": "ihn sie es sie", "dat": "ihm ihr ihm ihnen"}
_RELATIVE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem denen"}
_STEMS = {"this": "dies", "a": "ein", "no": "kein", "my": "mein"}


def _cell(table: dict[str, str], case: str, gender: str, plural: bool) -> str:
    return table[case].split(" ")["mfn".index(gender) if not plural else 3]


def article(kind: str, case: str, gender: str, plural: bool) -> str:
    """The German determiner; `kind` is the, this, a, no or my."""
    if kind == "the":
        return _cell(_DEFINITE, case, gender, plural)
    return _STEMS[kind] + _cell(_ENDINGS if kind == "this" else _MIXED, case, gender, plural)


def adjective_ending(kind: str, case: str, gender: str, plural: bool) -> str:
    """The ending of an attributive adjective behind a determiner; `kind` may be "" (a number, or none)."""
    if kind in ("the", "this"):
        return _cell(_WEAK, case, gender, plural)
    return _BARE_PLURAL[case] if kind == "" else _cell(_BEHIND_MIXED, case, gender, plural)


def noun_form(noun: Noun, case: str, plural: bool) -> str:
    """The German noun; only the dative plural has an ending of its own."""
    if not plural:
        return noun.german
    return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")


def pronoun(case: str, gender: str, plural: bool) -> str:
    """er, sie, es: the gender is that of the German noun."""
    return _cell(_PRONOUNS, case, gender, plural)


def relative_pronoun(case: str, gender: str, plural: bool) -> str:
    """der, die, das at the head of a relative clause."""
    return _cell(_RELATIVE, case, gender, plural)


def english_pronoun(case: str, singular: str, plural: bool) -> str:
    """He, him, they, ...: the gender is a natural one, and things and animals have none."""
    if case == "nom":
        return "they" if plural else singular
    return "them" if plural else {"he": "him", "she": "her", "it": "it"}[singular]


def finite(verb: Verb, past: bool, plural: bool) -> str:
    """The German finite form, without its prefix."""
    if past:
        return verb.german_past + ("" if not plural else "n" if verb.german_past.endswith("e") else "en")
    return verb.german if plural else verb.german_third
