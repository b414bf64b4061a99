#!/usr/bin/env python3
"""Writes `pii-own.jsonl` and `pii-fresh.jsonl`: sentences of this project, in other genres and languages than `pii-dev.jsonl`.

    python3 predictor/data/own_sentences.py own > predictor/data/pii-own.jsonl
    python3 predictor/data/own_sentences.py fresh > predictor/data/pii-fresh.jsonl

The sentences in `own-sentences.txt` and `fresh-sentences.txt` are written by hand; a slot such as `‹card:amex›` is replaced by a value that is made here, from a fixed seed, by the published
rule of its kind (nothing is shared with the scanner that is measured with it). The same script gives the same bytes. The rows have the
fields of `pii-dev.jsonl`; `style` is `genre`, `disguised`, `beside` or `neg:CLASS`. Only the standard library is used.
"""

import base64
import hashlib
import json
import pathlib
import random
import re
import sys

RNG = random.Random(20_261_130)


def digits(count, first="0123456789"):
    return RNG.choice(first) + "".join(RNG.choice("0123456789") for _ in range(count - 1))


def grouped(text, sizes, sep):
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at:at + size])
        at += size
    if at < len(text):
        parts.append(text[at:])
    return sep.join(parts)


def luhn_digit(body):
    total = 0
    for place, char in enumerate(reversed(body)):
        value = int(char) * (2 if place % 2 == 0 else 1)
        total += value // 10 + value % 10
    return str(-total % 10)


# Prefix, length, printed groups.
CARDS = {
    "visa": (("4",), 16, (4, 4, 4, 4)),
    "visa19": (("4",), 19, (4, 4, 4, 4, 3)),
    "mc": (("51", "52", "53", "54", "55"), 16, (4, 4, 4, 4)),
    "mc2": (("2221", "2300", "2512", "2720"), 16, (4, 4, 4, 4)),
    "amex": (("34", "37"), 15, (4, 6, 5)),
    "discover": (("6011", "644", "65"), 16, (4, 4, 4, 4)),
    "jcb": (("3528", "3566", "3589"), 16, (4, 4, 4, 4)),
    "diners": (("300", "305", "36", "38"), 14, (4, 6, 4)),
    "maestro": (("5018", "6304", "6759"), 18, (4, 4, 4, 4, 2)),
    "unionpay": (("622126", "6240"), 16, (4, 4, 4, 4)),
    "unionpay19": (("622126", "6217"), 19, (4, 4, 4, 4, 3)),
    "rupay": (("6521", "8172"), 16, (4, 4, 4, 4)),
    "mir": (("2200", "2204"), 16, (4, 4, 4, 4)),
    "troy": (("9792",), 16, (4, 4, 4, 4)),
}


def card(brand="visa", sep=""):
    prefixes, length, sizes = CARDS[brand]
    prefix = RNG.choice(prefixes)
    body = prefix + digits(length - 1 - len(prefix))
    number = body + luhn_digit(body)
    return grouped(number, sizes, sep) if sep else number


# The BBAN as the country's registry entry has it: n digit, a letter, c either.
BBAN = {
    "DE": "n18", "FR": "n10c11n2", "ES": "n20", "IT": "a1n10c12", "NL": "a4n10", "GB": "a4n14", "BE": "n12", "AT": "n16", "CH": "n5c12",
    "PL": "n24", "SE": "n20", "NO": "n11", "DK": "n14", "PT": "n21", "IE": "a4n14", "TR": "n5n1c16", "SA": "n2c18", "AE": "n3n16",
    "RO": "a4c16", "CZ": "n20", "GR": "n7c16", "BR": "n8n5n10a1c1", "FI": "n14", "HU": "n24", "UA": "n6c19", "LU": "n3c13",
}


def iban(country="DE", sep=""):
    bban = ""
    for kind, count in re.findall(r"([nac])(\d+)", BBAN[country]):
        alphabet = {"n": "0123456789", "a": "ABCDEFGHKLMNPRSTUVWXYZ", "c": "0123456789ABCDEFGHKLMN"}[kind]
        bban += "".join(RNG.choice(alphabet) for _ in range(int(count)))
    value = "".join(str(int(char, 36)) for char in bban + country + "00")
    text = f"{country}{98 - int(value) % 97:02d}{bban}"
    return sep.join(text[at:at + 4] for at in range(0, len(text), 4)) if sep else text


def ssn(sep="-"):
    area = RNG.choice([n for n in range(1, 900) if n != 666])
    return f"{area:03d}{sep}{RNG.randint(1, 99):02d}{sep}{RNG.randint(1, 9999):04d}"


def itin(sep="-"):
    return f"9{digits(2)}{sep}{RNG.choice('78')}{RNG.randint(0, 8)}{sep}{RNG.randint(0, 9999):04d}"


def until(make, holds):
    while True:
        text = make()
        if holds(text):
            return text


def weighted(text, weights):
    return sum(int(char) * weight for char, weight in zip(text, weights))


def routing():
    return until(lambda: RNG.choice(["02", "03", "07", "11", "26", "31"]) + digits(7), lambda t: weighted(t, (3, 7, 1) * 3) % 10 == 0)


def sin(sep=" "):
    body = digits(8, "1234567")
    return grouped(body + luhn_digit(body), (3, 3, 3), sep)


def tfn(sep=" "):
    return grouped(until(lambda: digits(9, "12345678"), lambda t: weighted(t, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0), (3, 3, 3), sep)


def bsn(sep=""):
    return grouped(until(lambda: digits(9, "1234567"), lambda t: weighted(t, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0), (3, 3, 3), sep)


def nhs(sep=" "):
    body = until(lambda: digits(9, "4567"), lambda t: weighted(t, range(10, 1, -1)) % 11 not in (1,))
    return grouped(body + str(-weighted(body, range(10, 1, -1)) % 11), (3, 3, 4), sep)


def date6():
    return f"{RNG.randint(40, 99):02d}{RNG.randint(1, 12):02d}{RNG.randint(1, 28):02d}"


def personnummer(sep="-"):
    body = date6() + digits(3)
    return body[:6] + sep + body[6:] + luhn_digit(body)


def steuer_id(sep=""):
    def make():
        order = RNG.sample("0123456789", 10)
        order[9] = order[RNG.randint(0, 8)]
        RNG.shuffle(order)
        return "".join(order)

    def fits(text):
        return text[0] != "0" and sorted(text.count(c) for c in set(text))[-1] == 2

    body = until(make, fits)
    product = 10
    for char in body:
        total = (int(char) + product) % 10 or 10
        product = total * 2 % 11
    return grouped(body + str((11 - product) % 10), (2, 3, 3, 3), sep)


def be_nn(style="full"):
    body = date6() + f"{RNG.randint(1, 997):03d}"
    text = body + f"{97 - int(body) % 97:02d}"
    return f"{text[:2]}.{text[2:4]}.{text[4:6]}-{text[6:9]}.{text[9:]}" if style == "full" else text


def pesel():
    body = date6() + digits(4)
    return body + str(-weighted(body, (1, 3, 7, 9) * 3) % 10)


def cpf(style="full"):
    body = digits(9, "1234567")
    for length in (10, 11):
        body += str(weighted(body, range(length, 1, -1)) * 10 % 11 % 10)
    return f"{body[:3]}.{body[3:6]}.{body[6:9]}-{body[9:]}" if style == "full" else body


def za_id():
    body = date6() + digits(4) + RNG.choice("01") + "8"
    return body + luhn_digit(body)


def ahv(sep="."):
    body = "756" + digits(9)
    return grouped(body + str(-weighted(body, (1, 3) * 6) % 10), (3, 4, 4, 2), sep)


def hetu():
    date, serial = f"{RNG.randint(1, 28):02d}{RNG.randint(1, 12):02d}{RNG.randint(30, 99):02d}", f"{RNG.randint(2, 899):03d}"
    return f"{date}-{serial}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[int(date + serial) % 31]}"


def verhoeff_digit(body):
    def multiply(a, b):
        if a < 5 and b < 5:
            return (a + b) % 5
        if a < 5:
            return (a + b - 5) % 5 + 5
        if b < 5:
            return (a - 5 - b) % 5 + 5
        return (a - b) % 5

    power = [list(range(10)), [1, 5, 7, 6, 2, 8, 3, 0, 9, 4]]
    while len(power) < 8:
        power.append([power[-1][power[1][n]] for n in range(10)])
    check = 0
    for place, char in enumerate(reversed(body + "0")):
        check = multiply(check, power[place % 8][int(char)])
    return str(next(n for n in range(10) if multiply(check, n) == 0))


def aadhaar(sep=" "):
    body = digits(11, "23456789")
    return grouped(body + verhoeff_digit(body), (4, 4, 4), sep)


def pan():
    letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
    return "".join(RNG.choice(letters) for _ in range(3)) + "P" + RNG.choice(letters) + digits(4) + RNG.choice(letters)


def nir(sep=""):
    body = RNG.choice("12") + digits(2) + f"{RNG.randint(1, 12):02d}" + f"{RNG.randint(1, 95):02d}".replace("20", "21") + digits(6)
    return grouped(body + f"{97 - int(body) % 97:02d}", (1, 2, 2, 2, 3, 3, 2), sep)


def ric():
    body = RNG.choice(["110105", "310104", "440305"]) + f"{RNG.randint(1950, 2005)}{RNG.randint(1, 12):02d}{RNG.randint(1, 28):02d}" + digits(3)
    return body + "10X98765432"[weighted(body, (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)) % 11]


def rrn(sep="-"):
    body = date6() + RNG.choice("12") + digits(5)
    return body[:6] + sep + body[6:] + str((11 - weighted(body, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10)


LETTERS23 = "TRWAGMYFPDXBNJZSQVHLCKE"


def dni(sep=""):
    body = digits(8)
    return body + sep + LETTERS23[int(body) % 23]


def nie():
    lead, body = RNG.choice("XYZ"), digits(7)
    return lead + body + LETTERS23[int(str("XYZ".index(lead)) + body) % 23]


def nric():
    lead, body = RNG.choice("ST"), digits(7)
    return lead + body + "JZIHGFEDCBA"[(weighted(body, (2, 7, 6, 5, 4, 3, 2)) + (4 if lead == "T" else 0)) % 11]


def nino(sep=""):
    lead = RNG.choice(["AB", "CE", "JG", "NP", "PX", "SH", "WL"])
    body = digits(6)
    return sep.join([lead, body[:2], body[2:4], body[4:], RNG.choice("ABCD")])


def codice_fiscale():
    odd = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                   [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23]))
    names = "".join(RNG.choice("BCDFGLMNPRSTVZ") for _ in range(6))
    body = names + digits(2) + RNG.choice("ABCDEHLMPRST") + f"{RNG.randint(1, 28):02d}" + RNG.choice("FHL") + digits(3)
    value = sum(odd[c] if at % 2 == 0 else int(c, 36) - (10 if c.isalpha() else 0) for at, c in enumerate(body))
    return body + chr(ord("A") + value % 26)


def curp():
    body = "".join(RNG.choice("BCDFGLMNPRSTVZ") if at != 1 else RNG.choice("AEIOU") for at in range(4)) + date6() + RNG.choice("HM")
    body += RNG.choice(["DF", "JC", "NL", "VZ"]) + "".join(RNG.choice("BCDFGLMNPRST") for _ in range(3)) + RNG.choice("0123456789")
    alphabet = "0123456789ABCDEFGHIJKLMNÑOPQRSTUVWXYZ"
    return body + str(-sum(alphabet.index(c) * (18 - at) for at, c in enumerate(body)) % 10)


def mbi(sep="-"):
    letters = "ACDEFGHJKMNPQRTUVWXY"
    pattern = RNG.choice("123456789") + RNG.choice(letters) + digits(2) + RNG.choice(letters) + digits(2) + RNG.choice(letters) + RNG.choice(letters) + digits(2)
    return grouped(pattern, (4, 3, 4), sep)


def bic():
    return RNG.choice(["DEUTDEFF", "BNPAFRPP", "INGBNL2A", "CHASUS33XXX", "BARCGB22", "UNCRITMM", "CAIXESBB", "PKOPPLPW"])


PHONES = {
    "us": lambda: f"{RNG.choice('23456789')}{digits(2)}-{RNG.choice('23456789')}{digits(2)}-{digits(4)}",
    "us_paren": lambda: f"({RNG.choice('23456789')}{digits(2)}) {RNG.choice('23456789')}{digits(2)}-{digits(4)}",
    "us_dots": lambda: f"{RNG.choice('23456789')}{digits(2)}.{RNG.choice('23456789')}{digits(2)}.{digits(4)}",
    "us_plain": lambda: f"{RNG.choice('23456789')}{digits(2)}{RNG.choice('23456789')}{digits(2)}{digits(4)}",
    "us_one": lambda: f"1-{RNG.choice('23456789')}{digits(2)}-{RNG.choice('23456789')}{digits(2)}-{digits(4)}",
    "us_plus": lambda: f"+1 {RNG.choice('23456789')}{digits(2)} {RNG.choice('23456789')}{digits(2)} {digits(4)}",
    "us_e164": lambda: f"+1{RNG.choice('23456789')}{digits(2)}{RNG.choice('23456789')}{digits(2)}{digits(4)}",
    "us_spaces": lambda: f"{RNG.choice('23456789')}{digits(2)} {RNG.choice('23456789')}{digits(2)} {digits(4)}",
    "us7": lambda: f"{RNG.choice('23456789')}{digits(2)}-{digits(4)}",
    "gb_mobile": lambda: f"07{digits(3)} {digits(6)}",
    "gb_london": lambda: f"020 7{digits(3)} {digits(4)}",
    "gb_plus": lambda: f"+44 7{digits(3)} {digits(6)}",
    "gb_plus0": lambda: f"+44 (0)20 7{digits(3)} {digits(4)}",
    "gb_area": lambda: f"01{digits(3)} {digits(6)}",
    "de_mobile": lambda: f"0171 {digits(7)}",
    "de_slash": lambda: f"0{RNG.choice(['89', '30', '40', '221'])}/{digits(7, '23456789')}",
    "de_plus": lambda: f"+49 {RNG.choice(['89', '30', '40'])} {digits(7, '23456789')}",
    "de_dash": lambda: f"0{digits(3, '23456789')}-{digits(6, '23456789')}",
    "de_mobile_plus": lambda: f"+49 (0) 160 {digits(4)} {digits(4)}",
    "fr": lambda: " ".join(["0" + RNG.choice("1234567")] + [digits(2) for _ in range(4)]),
    "fr_dots": lambda: ".".join(["0" + RNG.choice("1234567")] + [digits(2) for _ in range(4)]),
    "fr_plain": lambda: "06" + digits(8),
    "fr_plus": lambda: "+33 " + " ".join([RNG.choice("67")] + [digits(2) for _ in range(4)]),
    "es": lambda: f"6{digits(2)} {digits(3)} {digits(3)}",
    "es_pairs": lambda: f"9{digits(2)} {digits(2)} {digits(2)} {digits(2)}",
    "es_plain": lambda: f"6{digits(8)}",
    "es_plus": lambda: f"+34 6{digits(2)} {digits(2)} {digits(2)} {digits(2)}",
    "it": lambda: f"3{digits(2)} {digits(7)}",
    "it_land": lambda: f"06 {digits(4)} {digits(4)}",
    "it_plus": lambda: f"+39 3{digits(2)} {digits(3)} {digits(4)}",
    "nl": lambda: f"06-{digits(8)}",
    "nl_spaces": lambda: f"06 {digits(2)} {digits(2)} {digits(2)} {digits(2)}",
    "nl_land": lambda: f"020-{digits(7)}",
    "pl": lambda: f"{digits(3, '56789')} {digits(3)} {digits(3)}",
    "pl_plus": lambda: f"+48 {digits(3, '56789')}-{digits(3)}-{digits(3)}",
    "pt": lambda: f"9{digits(2)} {digits(3)} {digits(3)}",
    "br": lambda: f"(11) 9{digits(4)}-{digits(4)}",
    "br_plain": lambda: f"21 9{digits(4)}-{digits(4)}",
    "br_plus": lambda: f"+55 11 9{digits(4)}-{digits(4)}",
    "se": lambda: f"070-{digits(3)} {digits(2)} {digits(2)}",
    "se_plus": lambda: f"+46 70 {digits(3)} {digits(2)} {digits(2)}",
    "dk": lambda: f"{digits(2, '23456789')} {digits(2)} {digits(2)} {digits(2)}",
    "no_plus": lambda: f"+47 {digits(3, '4')} {digits(2)} {digits(3)}",
    "fi": lambda: f"040 {digits(7)}",
    "ru": lambda: f"8 (9{digits(2)}) {digits(3)}-{digits(2)}-{digits(2)}",
    "ru_plus": lambda: f"+7 9{digits(2)} {digits(3)}-{digits(2)}-{digits(2)}",
    "ru_plain": lambda: f"89{digits(9)}",
    "tr": lambda: f"0532 {digits(3)} {digits(2)} {digits(2)}",
    "cn": lambda: f"13{digits(9)}",
    "cn_dash": lambda: f"138-{digits(4)}-{digits(4)}",
    "cn_land": lambda: f"010-{digits(8, '68')}",
    "jp": lambda: f"090-{digits(4)}-{digits(4)}",
    "jp_land": lambda: f"03-{digits(4, '3456')}-{digits(4)}",
    "kr": lambda: f"010-{digits(4, '23456789')}-{digits(4)}",
    "kr_land": lambda: f"02-{digits(3, '3457')}-{digits(4)}",
    "in": lambda: f"{digits(5, '6789')} {digits(5)}",
    "in_plain": lambda: f"{digits(10, '6789')}",
    "in_plus": lambda: f"+91-{digits(10, '6789')}",
    "in_zero": lambda: f"0{digits(10, '6789')}",
    "ae": lambda: f"050 {digits(7)}",
    "sa": lambda: f"05{digits(8)}",
    "eg": lambda: f"010{digits(8)}",
    "il": lambda: f"052-{digits(7)}",
    "au": lambda: f"04{digits(2)} {digits(3)} {digits(3)}",
    "au_land": lambda: f"(02) 9{digits(3)} {digits(4)}",
    "au_plus": lambda: f"+61 4{digits(2)} {digits(3)} {digits(3)}",
    "nz": lambda: f"021 {digits(3)} {digits(4)}",
    "sg": lambda: f"9{digits(3)} {digits(4)}",
    "mx": lambda: f"55 {digits(4)} {digits(4)}",
    "mx_plus": lambda: f"+52 1 55 {digits(4)} {digits(4)}",
    "ar": lambda: f"11 {digits(4)}-{digits(4)}",
    "ch": lambda: f"079 {digits(3)} {digits(2)} {digits(2)}",
    "ch_plus": lambda: f"+41 79 {digits(3)} {digits(2)} {digits(2)}",
    "at": lambda: f"0664 {digits(7)}",
    "za": lambda: f"082 {digits(3)} {digits(4)}",
    "ng": lambda: f"0803 {digits(3)} {digits(4)}",
    "vn": lambda: f"0912 {digits(3)} {digits(3)}",
    "id": lambda: f"0812-{digits(4)}-{digits(4)}",
    "ext": lambda: f"{RNG.choice('23456789')}{digits(2)}-{RNG.choice('23456789')}{digits(2)}-{digits(4)} ext. {digits(3)}",
}

FIRST = ["lena", "tomasz", "aiko", "farid", "bruna", "ngozi", "sven", "priya", "marek", "ines", "oliver", "yasmin", "hugo", "daria", "kwame"]
LAST = ["brandt", "kowalski", "tanaka", "haddad", "oliveira", "okafor", "lindqvist", "raman", "novak", "serrano", "whitfield", "kaya", "petit"]
DOMAINS = ["posteo.de", "wanadoo.fr", "seznam.cz", "bigpond.net.au", "uol.com.br", "naver.com", "163.com", "mail.ru", "lunarfreight.io", "stadt-ulm.de",
           "nhs.net", "cs.uni-leipzig.de", "outlook.com", "gmail.com", "protonmail.ch", "corp.kestrel.dev"]


def email(style="dot"):
    first, last = RNG.choice(FIRST), RNG.choice(LAST)
    local = {"dot": f"{first}.{last}", "plus": f"{first}+news", "under": f"{first}_{last}{digits(2)}", "short": f"{first[0]}{last}", "caps": f"{first.title()}.{last.title()}"}[style]
    return f"{local}@{RNG.choice(DOMAINS)}"


def token(alphabet, count):
    mixed = "ab7" if alphabet.islower() or alphabet[0].islower() else "A7"
    return "".join(RNG.choice(alphabet) for _ in range(count - len(mixed))) + mixed


LOWER, UPPER, DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
ALL = LOWER + UPPER + DIGITS
B64U = ALL + "-_"


def jwt():
    part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
    return ".".join([part({"alg": "HS256", "typ": "JWT"}), part({"sub": digits(8), "iat": 1_700_000_000}), token(B64U, 43)])


# Prefixes stand apart from their dashes so that the script itself is no find of a naive scanner.
SECRETS = {
    "openai": lambda: "sk" + "-proj-" + token(ALL, 48), "anthropic": lambda: "sk" + "-ant-api03-" + token(B64U, 80), "aws": lambda: "AKI" + "A" + token(UPPER + "234567", 16),
    "github": lambda: "gh" + "p_" + token(ALL, 36), "gitlab": lambda: "glp" + "at-" + token(ALL, 20), "google": lambda: "AIz" + "a" + token(B64U, 35),
    "hf": lambda: "hf" + "_" + token(ALL, 34), "npm": lambda: "npm" + "_" + token(ALL, 36), "slack": lambda: "xox" + "b-" + digits(12) + "-" + digits(12) + "-" + token(ALL, 24),
    "stripe": lambda: "sk" + "_live_" + token(ALL, 24), "sendgrid": lambda: "SG" + "." + token(B64U, 22) + "." + token(B64U, 43), "jwt": jwt,
    "pem": lambda: "-----BEGIN EC PRIVATE" + " KEY-----\n" + token(ALL, 64) + "\n" + token(ALL, 40) + "\n-----END EC PRIVATE" + " KEY-----",
    "url": lambda: RNG.choice(["postgresql", "amqps", "redis", "https", "mongodb+srv"]) + "://svc_" + RNG.choice(LAST) + ":" + token(ALL, 14) + "@" + RNG.choice(["db", "mq", "cache"]) + ".kestrel.dev",
    "pypi": lambda: "pypi" + "-AgEIcHlwaS5vcmc" + token(B64U, 70),
}
SECRET_KINDS = {"openai": "openai_key", "anthropic": "anthropic_key", "aws": "aws_access_key", "github": "github_token", "gitlab": "gitlab_token", "google": "google_api_key",
                "hf": "huggingface_token", "npm": "npm_token", "slack": "slack_token", "stripe": "stripe_key", "sendgrid": "sendgrid_key", "jwt": "jwt", "pem": "private_key",
                "url": "url_credentials", "pypi": "pypi_token"}


def password():
    return RNG.choice(["Kestrel", "Blaue", "tango", "Nube"]) + RNG.choice("!#_-") + digits(3) + token(ALL, 5)


def public_ip():
    return f"{RNG.choice([23, 45, 62, 81, 91, 146, 178])}.{RNG.randint(1, 250)}.{RNG.randint(1, 250)}.{RNG.randint(1, 250)}"


def passport(style="uk"):
    return {"uk": digits(9, "123456789"), "de": "C" + "".join(RNG.choice("FGHJKLMNPRTVWXYZ0123456789") for _ in range(7)) + digits(1), "us": RNG.choice(UPPER) + digits(8),
            "in": RNG.choice("JKLMNPRSTZ") + digits(7), "cn": "E" + digits(8), "fr": digits(2) + RNG.choice(UPPER) + RNG.choice(UPPER) + digits(5)}[style]


def licence(style="ca"):
    return {"ca": RNG.choice("BDEFY") + digits(7), "fl": RNG.choice(UPPER) + digits(12), "ny": digits(9, "123456789")}[style]


def mac():
    return ":".join(f"{RNG.randint(0, 255):02x}" for _ in range(6))


BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


def base58_check(payload):
    """An address of Bitcoin's first form: 25 bytes, the last four of them a hash of the others."""
    payload += hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4]
    number, text = int.from_bytes(payload, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return "1" * (len(payload) - len(payload.lstrip(b"\0"))) + text


def bech32(values):
    """BIP 173 for the readable part `bc`."""
    check = 1
    for value in [3, 3, 0, 2, 3, *values, 0, 0, 0, 0, 0, 0]:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, term in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= term if top >> bit & 1 else 0
    check ^= 1
    return "bc1" + "".join(BECH32[value] for value in values + [check >> 5 * (5 - at) & 31 for at in range(6)])


def wallet(style="eth"):
    if style == "eth":
        return "0x" + "".join(RNG.choice("0123456789abcdef") for _ in range(40))
    if style == "base58":
        return base58_check(b"\0" + bytes(RNG.randint(1, 255) for _ in range(20)))
    # 160 bits are exactly 32 groups of five.
    return bech32([0] + [RNG.randint(0, 31) for _ in range(32)])


# Slot name: kind, tier, maker.
SLOTS = {
    "card": ("credit_card", "A", card), "iban": ("iban", "A", iban), "ssn": ("us_ssn", "A", ssn), "ssnw": ("us_ssn", "B", lambda: ssn("")), "itin": ("us_itin", "A", itin),
    "routing": ("us_routing", "B", routing), "sin": ("ca_sin", "B", sin), "tfn": ("au_tfn", "B", tfn), "bsn": ("nl_bsn", "B", bsn), "nhs": ("uk_nhs", "B", nhs),
    "pnr": ("se_personnummer", "B", personnummer), "steuer": ("de_steuer_id", "B", steuer_id), "benn": ("be_nn", "B", be_nn), "pesel": ("pl_pesel", "B", pesel),
    "cpf": ("br_cpf", "B", cpf), "zaid": ("za_id", "B", za_id), "ahv": ("ch_ahv", "A", ahv), "hetu": ("fi_hetu", "A", hetu), "aadhaar": ("in_aadhaar", "B", aadhaar),
    "pan": ("in_pan", "B", pan), "nir": ("fr_nir", "A", nir), "ric": ("cn_ric", "A", ric), "rrn": ("kr_rrn", "A", rrn), "dni": ("es_dni", "A", dni), "nie": ("es_nie", "A", nie),
    "nric": ("sg_nric", "A", nric), "nino": ("uk_nino", "A", nino), "cf": ("it_codice_fiscale", "A", codice_fiscale), "curp": ("mx_curp", "A", curp), "mbi": ("us_mbi", "B", mbi),
    "bic": ("swift_bic", "B", bic), "mail": ("email", "A", email), "ip": ("ip_address", "A", public_ip), "passport": ("passport", "B", passport),
    "licence": ("us_driver_license", "B", licence), "password": ("generic_secret", "B", password), "tel": ("phone", "A", lambda style: PHONES[style]()),
    "mac": ("mac_address", "A", mac), "wallet": ("crypto_wallet", "A", wallet),
    "secret": (None, "A", lambda name: SECRETS[name]()),
}
SLOT = re.compile(r"‹(\w+)(?::([^›]*))?›")


def value_of(name, argument):
    kind, tier, make = SLOTS[name]
    if name == "secret":
        kind = SECRET_KINDS[argument]
    arguments = [] if argument is None else [part.replace("_", " ") if part == "_" else part for part in argument.split(",")]
    return kind, tier, make(*arguments)


def row(name, number, style, locale, template, disguise=None):
    text, labels, at = "", [], 0
    for slot in SLOT.finditer(template):
        text += template[at:slot.start()]
        kind, tier, value = value_of(slot.group(1), slot.group(2))
        value = disguise(value) if disguise else value
        start = len(text.encode())
        text += value
        labels.append({"kind": kind, "tier": tier, "start": start, "end": len(text.encode())})
        at = slot.end()
    text += template[at:]
    return {"id": f"{name}-{number:04d}", "text": text, "labels": labels, "style": style, "locale": locale}


WORDS = {
    "en": "zero one two three four five six seven eight nine", "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf", "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "it": "zero uno due tre quattro cinque sei sette otto nove", "pt": "zero um dois três quatro cinco seis sete oito nove",
    "nl": "nul een twee drie vier vijf zes zeven acht negen", "pl": "zero jeden dwa trzy cztery pięć sześć siedem osiem dziewięć",
    "ru": "ноль один два три четыре пять шесть семь восемь девять", "zh": "零 一 二 三 四 五 六 七 八 九", "ja": "ゼロ いち に さん よん ご ろく なな はち きゅう",
    "tr": "sıfır bir iki üç dört beş altı yedi sekiz dokuz", "ko": "공 일 이 삼 사 오 육 칠 팔 구",
}


def spelled(language, sep=" "):
    words = WORDS[language].split()
    return lambda value: sep.join(words[int(char)] for char in value if char.isdigit())


def spelled_double(value):
    """The way it is said on the telephone: two equal digits are "double" one."""
    words, said = WORDS["en"].split(), []
    for match in re.finditer(r"(\d)\1|\d", value):
        said.append(("double " if len(match.group()) == 2 else "") + words[int(match.group()[0])])
    return " ".join(said)


def at_dot(sign, dot):
    return lambda value: value.replace("@", sign).replace(".", dot)


def between(sep):
    return lambda value: sep.join(char for char in value if char.isalnum())


def shifted(zero, capital=None, small=None):
    """Digits (and letters) as those of another block of Unicode."""
    def one(char):
        if char.isdigit():
            return chr(zero + int(char))
        if capital and char.isupper():
            return chr(capital + ord(char) - ord("A"))
        if small and char.islower():
            return chr(small + ord(char) - ord("a"))
        return char
    return lambda value: "".join(one(char) for char in value)


def in_base64(text):
    return base64.b64encode(text.encode()).decode()


def circled(value):
    return "".join("⓪①②③④⑤⑥⑦⑧⑨"[int(char)] if char.isdigit() else char for char in value)


def homoglyph(value):
    """Cyrillic letters in the place of Latin ones that look the same."""
    return value.translate(str.maketrans("aceopxyABCEHKMOPTXi", "асеорхуАВСЕНКМОРТХі"))


def cells(value):
    return value.replace(" ", " | ")


DISGUISES = {
    "spelled": spelled("en"), "spelled_de": spelled("de"), "spelled_fr": spelled("fr"), "spelled_es": spelled("es"), "at": at_dot(" [at] ", " [dot] "),
    "at_words": at_dot(" at ", " dot "), "at_spaces": at_dot(" @ ", " . "), "at_mixed": at_dot("(at)", "."), "at_only": at_dot(" AT ", "."), "at_de": at_dot(" (ät) ", " (punkt) "),
    "at_es": at_dot(" arroba ", " punto "), "zero_width": lambda value: "\u200b".join(value), "full_width": shifted(0xFF10, 0xFF21, 0xFF41), "base64": in_base64,
    "base64_sentence": lambda value: in_base64(f"The value you asked for is {value}, keep it."), "hex": lambda value: value.encode().hex(),
    "newlines": lambda value: "\n".join(value[at:at + 4] for at in range(0, len(value), 4)), "one_a_line": lambda value: "\n".join(value), "dots": between("."), "spaces": between(" "),
    "stars": lambda value: "*".join(value[at:at + 4] for at in range(0, len(value), 4)), "commas": lambda value: value.replace(" ", ", "),
    "slashes": lambda value: value.replace(" ", " / "), "pipes": lambda value: value.replace(" ", " | "), "plus_signs": lambda value: value.replace(" ", "+"),
    "pairs": lambda value: " ".join(value[at:at + 2] for at in range(0, len(value), 2)), "percent": lambda value: value.replace("@", "%40"), "html": lambda value: value.replace("@", "&#64;"),
    "json_unicode": lambda value: "".join(f"\\u{ord(char):04x}" for char in value), "arabic_digits": shifted(0x0660), "devanagari": shifted(0x0966), "circled": circled,
    "bold": shifted(0x1D7CE, 0x1D400, 0x1D41A), "keycaps": lambda value: "".join(char + "\ufe0f\u20e3" for char in value), "letter_o": lambda value: value.replace("0", "O").replace("1", "l"),
    "reversed": lambda value: value[::-1], "quoted": lambda value: value.replace(" ", '" "'), "markdown": lambda value: value.replace(" ", "** **"),
    "url_all": lambda value: "".join(f"%{ord(char):02X}" for char in value), "entities": lambda value: "".join(f"&#{ord(char)};" for char in value),
    "base64_url": lambda value: base64.urlsafe_b64encode(json.dumps({"user": value}).encode()).decode().rstrip("="), "homoglyph": homoglyph,
    "soft_hyphen": lambda value: "\u00ad".join(value[at:at + 3] for at in range(0, len(value), 3)), "cells": cells,
    "ocr": lambda value: value.translate(str.maketrans("0158", "OlSB")) if value[0] not in "58" else value.translate(str.maketrans("01", "Ol")),
    "line_break": lambda value: value[::-1].replace(" ", "\n", 1).replace("-", "-\n", 1)[::-1].replace("\n-", "-\n"),
    "spelled_commas": spelled("en", ", "), "spelled_double": spelled_double, "spelled_it": spelled("it"), "spelled_pt": spelled("pt"), "spelled_nl": spelled("nl"),
    "spelled_pl": spelled("pl"), "spelled_ru": spelled("ru"), "spelled_zh": spelled("zh", ""), "spelled_ja": spelled("ja"), "spelled_tr": spelled("tr"),
    "spelled_ko": spelled("ko", ""), "at_brackets": at_dot("<at>", "<dot>"), "at_fr": at_dot(" arobase ", " point "), "at_it": at_dot(" chiocciola ", " punto "),
    "at_nospam": lambda value: value.replace("@", "@nospam."), "underscored": lambda value: value.replace(" ", "_"), "spaced_groups": lambda value: value.replace(" ", "   "),
    "quoted_printable": lambda value: value.replace("@", "=40"), "brackets": lambda value: " ".join(f"[{part}]" for part in value.split(" ")),
    "tabs": lambda value: value.replace(" ", "\t"), "lines": lambda value: value.replace(" ", "\n"), "commat": lambda value: value.replace("@", "&commat;"),
    "hex_escape": lambda value: value.replace("@", "\\x40"), "soft_break": lambda value: value[: len(value) // 2] + "=\n" + value[len(value) // 2 :],
    "en_dash": lambda value: value.replace("-", "\u2013"), "no_break": lambda value: value.replace(" ", "\u00a0"), "thin_space": lambda value: value.replace(" ", "\u2009"),
}


def escape(line):
    """Writes what looks like a token's prefix with a JSON escape, so that naive scanners of files pass over it."""
    for prefix in ("sk-", "AKIA", "ghp_", "glpat-", "AIza", "hf_", "npm_", "xoxb-", "sk_live_", "SG.", "eyJ", "-----BEGIN", "pypi-", "://svc_"):
        line = line.replace(prefix, f"\\u{ord(prefix[0]):04x}" + prefix[1:])
    return line


def main(name):
    style, number = "", 0
    with open(pathlib.Path(__file__).with_name(f"{name}-sentences.txt"), encoding="utf-8") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if line.startswith("# "):
                style = line[2:]
                continue
            locale, template = line.split("  ", 1)
            number += 1
            template = template.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\")
            disguise = DISGUISES[style.split(":")[1]] if style.startswith("disguised:") else None
            print(escape(json.dumps(row(name, number, style, locale, template, disguise), ensure_ascii=False)))


if __name__ == "__main__":
    main(sys.argv[1])
