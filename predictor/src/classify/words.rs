//! The context words of tier B kinds, in the languages of their countries.
//!
//! A word supports the kinds in its row. Words of Latin letters must begin where a word begins (`bsnNummer` and `my_bsn` count, `absn`
//! does not); short ones must also end there, or be followed by a word for "number". Words of other scripts may stand anywhere.

use super::kind::Kind;

/// Where a context word must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// At the end of a word.
    Whole,
    /// Anywhere: the word may be the first part of a compound.
    Open,
}

/// Every kind a national number can be: what the bare words "ID number" support.
const ANY_NATIONAL: &[Kind] = &[
    Kind::UsSsn, Kind::UsItin, Kind::CaSin, Kind::AuTfn, Kind::DeSteuerId, Kind::FrNir, Kind::EsDni, Kind::EsNie,
    Kind::ItCodiceFiscale, Kind::NlBsn, Kind::BeNn, Kind::ChAhv, Kind::PlPesel, Kind::SePersonnummer, Kind::FiHetu,
    Kind::InAadhaar, Kind::InPan, Kind::BrCpf, Kind::CnRic, Kind::KrRrn, Kind::SgNric, Kind::ZaId, Kind::UkNino,
];

/// Kinds, ending, words. Lower case; ASCII letters are compared without regard to case.
pub(super) const TABLE: &[(&[Kind], Ending, &[&str])] = &[
    (&[Kind::Phone], Ending::Whole, &[
        "tel", "mob", "gsm", "fax", "sms", "cell", "call", "dial", "ring", "handy", "wa", "ph", "tlf", "tfno", "tél", "mobil",
        "text me", "reach me", "reach us", "reach him", "reach her", "text him", "text her", "my number", "his number", "her number", "our number", "your number", "their number", "my new number", "contact",
    ]),
    (&[Kind::Phone], Ending::Open, &[
        "phone", "telephone", "mobile", "cellphone", "telefon", "telefoon", "teléfono", "telefono", "telefone", "telemóvel", "téléphone",
        "celular", "cellulare", "móvil", "movil", "mobiel", "mobilnummer", "rufnummer", "portable", "whatsapp", "puhelin", "numer tel",
        "recapito", "contact number", "landline", "hotline", "helpline", "voicemail", "callback", "call back", "call me", "appelle",
        "llama", "llámame", "llámanos", "rappel", "joignable", "erreichbar", "ruf mich", "bel me", "chiama", "ligue", "contato", "signal", "telegram", "viber",
    ]),
    (&[Kind::CreditCard], Ending::Whole, &["cc", "amex", "visa", "pan", "mir", "mc", "cc number", "carta"]),
    (&[Kind::CreditCard], Ending::Open, &[
        "card", "credit", "debit", "mastercard", "maestro", "discover", "diners", "karte", "kaart", "carte banc", "carte de", "tarjeta",
        "cartão", "cartao", "karta", "kort", "payment", "ccnum", "jcb", "unionpay", "rupay",
    ]),
    (&[Kind::SwiftBic], Ending::Whole, &["bic", "swift"]),
    (&[Kind::SwiftBic], Ending::Open, &["swift code", "swift/bic", "bankleit", "bank identifier", "codice bic"]),
    (&[Kind::UsRouting], Ending::Whole, &["aba", "rtn", "ach"]),
    (&[Kind::UsRouting], Ending::Open, &["routing", "transit number", "wire transfer", "direct deposit"]),
    (&[Kind::UsSsn], Ending::Whole, &["ssn", "ssns", "ss#", "ss number", "my social", "his social", "her social", "their social", "social is", "social number", "social no"]),
    (&[Kind::UsSsn], Ending::Open, &["social security", "social-security", "soc sec", "social sec", "socialsecurity", "social_security", "seguro social"]),
    (&[Kind::UsItin], Ending::Whole, &["itin"]),
    (&[Kind::UsItin, Kind::UsSsn], Ending::Open, &["taxpayer", "tax payer"]),
    (&[Kind::UsDriverLicense], Ending::Whole, &["dl", "dln", "dl#", "cnh"]),
    (&[Kind::UsDriverLicense], Ending::Open, &[
        "driver's license", "drivers license", "driver license", "driver's licence", "drivers licence", "driver licence",
        "driving licence", "driving license", "drivers_license", "driver_license", "driverslicense", "driverlicense", "license number",
        "licence number", "license no", "licence no", "license #", "driver lic", "drivers lic", "driver's lic", "driver-license", "drivers-license",
        "führerschein", "fuehrerschein", "permis de conduire", "carnet de conducir", "licencia de conducir", "permiso de conducir",
        "patente di guida", "rijbewijs", "driving permit", "operator license",
    ]),
    (&[Kind::Passport], Ending::Open, &[
        "passport", "passeport", "pasaporte", "passaporto", "reisepass", "paspoort", "passaporte", "paszport", "passnummer", "travel document",
    ]),
    (&[Kind::Passport], Ending::Open, &["护照", "護照", "паспорт", "旅券", "パスポート", "여권", "पासपोर्ट", "جواز"]),
    (&[Kind::CaSin], Ending::Whole, &["sin", "nas"]),
    (&[Kind::CaSin, Kind::ChAhv], Ending::Open, &["social insurance", "social_insurance", "socialinsurance", "assurance sociale", "sozialversicherung"]),
    (&[Kind::ChAhv], Ending::Whole, &["ahv", "avs", "oasi"]),
    (&[Kind::AuTfn], Ending::Whole, &["tfn"]),
    (&[Kind::AuTfn], Ending::Open, &["tax file", "tax_file", "taxfile"]),
    (&[Kind::DeSteuerId], Ending::Whole, &["idnr", "tin", "steuernr", "steuer-nr"]),
    (&[Kind::DeSteuerId], Ending::Open, &["steuer", "identifikationsnummer", "german tax", "taxid"]),
    (&[Kind::NlBsn], Ending::Whole, &["bsn"]),
    (&[Kind::NlBsn], Ending::Open, &["burgerservice", "burger service", "sofinummer", "sofi-nummer", "citizen service"]),
    (&[Kind::BeNn], Ending::Whole, &["insz", "niss", "rrn"]),
    (&[Kind::BeNn], Ending::Open, &[
        "rijksregister", "registre national", "national register", "nationaal nummer", "national number", "national_number",
        "nationalnumber", "numéro national", "numero national", "nationalregister",
    ]),
    (&[Kind::PlPesel], Ending::Open, &["pesel"]),
    (&[Kind::SePersonnummer], Ending::Whole, &["pnr"]),
    (&[Kind::SePersonnummer], Ending::Open, &["personnummer", "personnr", "samordningsnummer", "personal number", "personal identity", "swedish id", "personal id"]),
    (&[Kind::FiHetu], Ending::Open, &["hetu", "henkilötunnus", "henkilotunnus"]),
    (&[Kind::InAadhaar], Ending::Whole, &["uid", "uidai"]),
    (&[Kind::InAadhaar], Ending::Open, &["aadhaar", "aadhar", "adhaar", "adhar"]),
    (&[Kind::InAadhaar], Ending::Open, &["आधार"]),
    (&[Kind::InPan], Ending::Whole, &["pan", "pan no", "pan card"]),
    (&[Kind::InPan], Ending::Open, &["permanent account", "pan_number", "pannumber", "pan number", "income tax"]),
    (&[Kind::InPan], Ending::Open, &["पैन"]),
    (&[Kind::BrCpf], Ending::Whole, &["cpf"]),
    (&[Kind::BrCpf], Ending::Open, &["cadastro de pessoa", "pessoa física", "pessoa fisica"]),
    (&[Kind::ZaId], Ending::Whole, &["sa id", "rsa id", "za id", "za_id"]),
    (&[Kind::ZaId], Ending::Open, &["south african id", "south africa", "za_id_number", "southafrican"]),
    (&[Kind::FrNir], Ending::Whole, &["nir", "insee", "nss"]),
    (&[Kind::FrNir], Ending::Open, &["sécurité sociale", "securite sociale", "carte vitale", "sécu"]),
    (&[Kind::KrRrn], Ending::Whole, &["rrn"]),
    (&[Kind::KrRrn], Ending::Open, &["resident registration"]),
    (&[Kind::KrRrn], Ending::Open, &["주민등록", "주민번호"]),
    (&[Kind::CnRic], Ending::Open, &["身份证", "身份證", "公民身份"]),
    (&[Kind::UkNino], Ending::Whole, &["nino", "ni no", "ni number"]),
    (&[Kind::UkNino], Ending::Open, &["national insurance"]),
    (&[Kind::UkNhs], Ending::Whole, &["nhs"]),
    (&[Kind::UkNhs], Ending::Open, &["national health", "nhs number", "nhs_number", "nhsnumber", "patient number", "patient no", "patient id"]),
    (&[Kind::UsMbi], Ending::Whole, &["mbi", "hicn"]),
    (&[Kind::UsMbi], Ending::Open, &["medicare", "beneficiary"]),
    (&[Kind::Phone], Ending::Open, &[
        "电话", "手机", "電話", "手機", "携帯", "전화", "휴대폰", "연락처", "телефон", "тел.", "мобильн", "फ़ोन", "फोन", "मोबाइल", "هاتف",
        "جوال", "رقم الهاتف", "โทร", "τηλέφωνο", "טלפון",
    ]),
    (&[Kind::CreditCard], Ending::Open, &["卡号", "信用卡", "银行卡", "カード", "카드", "карт", "بطاقة"]),
    (ANY_NATIONAL, Ending::Open, &[
        "national id", "national_id", "nationalid", "identity number", "identity no", "identity card", "identification number",
        "id number", "id_number", "idnumber", "id no", "id card", "id_card", "government id", "citizen id", "personal id", "tax id", "tax_id", "tax number",
        "taxid", "tax no", "ausweis", "personalausweis", "carte d'identité", "pièce d'identité", "documento de identidad", "carta d'identità",
        "identiteitskaart", "identiteitsnummer", "fiscal code", "codice fiscale", "nationale id",
    ]),
    (ANY_NATIONAL, Ending::Whole, &["tin", "nin", "national identifier"]),
    (&[Kind::GenericSecret], Ending::Whole, &[
        "pwd", "pass", "passwd", "passcode", "pw", "auth", "bearer", "token", "tokens", "secret", "secrets", "clave", "senha", "api keys", "credential",
        "credentials", "creds",
    ]),
    (&[Kind::GenericSecret], Ending::Open, &[
        "password", "passphrase", "passwort", "kennwort", "wachtwoord", "contraseña", "contrasena", "mot de passe", "parola", "hasło",
        "api key", "api_key", "apikey", "api-key", "access key", "access_key", "accesskey", "access-key", "secret key", "secret_key", "secretkey",
        "secret-key", "client secret", "client_secret", "clientsecret", "private key", "private_key", "auth token", "auth_token", "authtoken",
        "access token", "access_token", "accesstoken", "refresh_token", "encryption key", "encryption_key", "signing key", "signing_key",
        "license key", "authorization", "connection string", "account key", "accountkey", "sharedaccesskey",
    ]),
    (&[Kind::GenericSecret], Ending::Open, &["密码", "密碼", "密钥", "パスワード", "비밀번호", "пароль", "كلمة المرور"]),
];
