package redact

import (
	"bytes"
	"encoding/base64"
	"regexp"

	"k8s.io/client-go/rest"
)

// Mark replaces a removed secret.
const Mark = "REDACTED"

// Redactor removes secrets. The zero value keeps no public keys and has no literals. A Redactor may
// be used from several goroutines.
type Redactor struct {
	public   map[string]bool
	literals []string
}

// New returns a Redactor that keeps the WireGuard keys in public, which are in base64, and removes
// all occurrences of literals. It ignores literals of fewer than eight bytes, because these often
// occur in other text.
func New(public, literals []string) *Redactor {
	r := &Redactor{public: map[string]bool{}}
	for _, k := range public {
		r.public[k] = true
	}
	for _, l := range literals {
		if len(l) >= 8 {
			r.literals = append(r.literals, l)
		}
	}
	return r
}

// OfClient returns the secrets of a client of the API server, as literals for New.
func OfClient(cfg *rest.Config) []string {
	out := []string{cfg.BearerToken, cfg.Password}
	if len(cfg.KeyData) > 0 {
		out = append(out, string(cfg.KeyData), base64.StdEncoding.EncodeToString(cfg.KeyData))
	}
	return out
}

// secretName matches a name of a secret value, or the end of such a name. Hyphens and underscores
// within the name are optional, and case does not matter.
const secretName = `(?:private[-_]?key|preshared[-_]?key|secret[-_]?key|api[-_]?key|access[-_]?key|client[-_]?key(?:[-_]?data)?|client[-_]?certificate[-_]?data|certificate[-_]?key|token|token[-_]?data|password|passwd|passphrase|secret|credentials?|authorization)`

// before matches the position before a secret word: the beginning of the text, or a character that
// cannot be part of the word.
const before = `(^|[^A-Za-z0-9+/_=-])`

// rules are applied in order: patterns that span lines come before patterns within a line.
var rules = []struct {
	find *regexp.Regexp
	with string
}{
	// A block without its end extends to the end of the text, because its lines hold key material.
	{regexp.MustCompile(
		`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`),
		Mark},
	// The end of a block without its beginning, as in a truncated log.
	{regexp.MustCompile(`(?:[A-Za-z0-9+/=]{4,}(?:\\n|\s)+)+-----END [A-Z0-9 ]*PRIVATE KEY-----`),
		Mark},
	// Any PEM in base64, also with line breaks, as in kubeconfigs.
	{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]*(?:(?:\\n|\s)+[A-Za-z0-9+/=]{40,})*`), Mark},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`), Mark},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), `${1} ` + Mark},
	{regexp.MustCompile(`(://[^\s/:@"']*:)[^\s/@"']+@`), `${1}` + Mark + `@`},
	// kubeadm's bootstrap tokens: six characters, a dot and sixteen characters.
	{regexp.MustCompile(before + `[a-z0-9]{6}\.[a-z0-9]{16}($|[^A-Za-z0-9-])`),
		`${1}` + Mark + `${2}`},
	{named, `${1}` + Mark},
	{regexp.MustCompile(`(?i)(--[a-z-]*` + secretName + `[ =])\S+`), `${1}` + Mark},
}

// named matches name: value, "name": "value" or name=value. The value is one word, or is in quotes,
// which may be escaped.
var named = regexp.MustCompile(`(?i)(` + secretName +
	`\\*["']?\s*[:=][ \t]*)(\\*"(?:[^"\\\n]|\\[^"\n])*\\*"|'[^'\n]*'|[^\s"',;}\]]+)`)

// harmless matches a value that named finds and that cannot be a secret, such as true or a small
// number.
var harmless = regexp.MustCompile(`(?i)[:=][ \t]*(?:true|false|null|none|\d{1,3})$`)

// key matches 32 bytes in base64: 43 digits and "=". The last digit holds only four bits, so it has
// only sixteen values.
var key = regexp.MustCompile(`[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=`)

// hexKey matches a word of 32 bytes in hexadecimal, the form of keys in WireGuard's configuration
// protocol.
var hexKey = regexp.MustCompile(`(^|[^0-9A-Fa-f])([0-9A-Fa-f]{64})($|[^0-9A-Fa-f])`)

// Text returns text without secrets, and the number of removed secrets. It does not change its
// argument.
func (r *Redactor) Text(text []byte) ([]byte, int) {
	out, n := text, 0
	for _, l := range r.literals {
		if c := bytes.Count(out, []byte(l)); c > 0 {
			out, n = bytes.ReplaceAll(out, []byte(l), []byte(Mark)), n+c
		}
	}

	for _, rule := range rules {
		out = rule.find.ReplaceAllFunc(out, func(found []byte) []byte {
			if rule.find == named && harmless.Match(found) {
				return found
			}
			with := rule.find.ReplaceAll(found, []byte(rule.with))
			if !bytes.Equal(with, found) {
				n++
			}
			return with
		})
	}

	out = key.ReplaceAllFunc(out, func(found []byte) []byte {
		if r.public[string(found)] {
			return found
		}
		n++
		return []byte(Mark)
	})
	return r.hex(out, &n), n
}

// hex removes words of 64 hexadecimal digits, except digests and names of containers. It adds the
// number of removed words to n.
func (r *Redactor) hex(text []byte, n *int) []byte {
	var out bytes.Buffer
	for len(text) > 0 {
		at := hexKey.FindSubmatchIndex(text)
		if at == nil {
			break
		}
		start, end := at[4], at[5]
		out.Write(text[:start])
		if before := text[:start]; bytes.HasSuffix(before, []byte("sha256:")) ||
			bytes.HasSuffix(before, []byte("://")) {
			out.Write(text[start:end])
		} else {
			out.WriteString(Mark)
			*n++
		}
		text = text[end:]
	}
	out.Write(text)
	return out.Bytes()
}

var secretField = regexp.MustCompile(`(?i)^(?:.*[-_.])?` + secretName +
	`$|(?:Token|Password|Passphrase|PrivateKey|SecretKey|ApiKey)$`)

// Object returns a copy of a decoded JSON or YAML value without secrets. It removes values under
// names of secrets, values of environment variables with such names, and secrets that Text finds in
// any string.
func (r *Redactor) Object(v any) (any, int) {
	switch v := v.(type) {
	case string:
		text, n := r.Text([]byte(v))
		return string(text), n
	case []any:
		out, n := make([]any, len(v)), 0
		for i, e := range v {
			c, k := r.Object(e)
			out[i], n = c, n+k
		}
		return out, n
	case map[string]any:
		out, n := make(map[string]any, len(v)), 0
		name, _ := v["name"].(string)
		for k, e := range v {
			text, isText := e.(string)
			if isText && text != "" && (secretField.MatchString(k) ||
				k == "value" && secretField.MatchString(name)) {
				out[k], n = Mark, n+1
				continue
			}
			c, more := r.Object(e)
			out[k], n = c, n+more
		}
		return out, n
	}

	return v, 0
}
