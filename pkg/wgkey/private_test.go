package wgkey

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// holder keeps a key where fmt cannot call its methods.
type holder struct {
	hidden  Private
	Shown   Private
	pointer *Private
	list    []Private
}

// spellings returns the texts in which a key could be printed.
func spellings(k Private) []string {
	b := k.Bytes()
	decimal := strings.Trim(fmt.Sprint(b[:4]), "[]")
	return []string{
		base64.StdEncoding.EncodeToString(b[:])[:10],
		hex.EncodeToString(b[:4]),
		strings.ToUpper(hex.EncodeToString(b[:4])),
		string(b[:6]),
		decimal,
		strings.ReplaceAll(decimal, " ", ", "),
		strings.Trim(fmt.Sprintf("%#v", b[:4])[7:], "{}"),
		strings.Trim(fmt.Sprintf("%o", b[:4]), "[]"),
		strings.Trim(fmt.Sprintf("%b", b[:4]), "[]"),
	}
}

func TestNoVerbShowsThePrivateKey(t *testing.T) {
	k := generate(t)
	values := map[string]any{
		"key": k, "pointer": &k, "slice": []Private{k}, "map": map[string]Private{"a": k},
		"struct":            holder{k, k, &k, []Private{k}},
		"pointer to struct": &holder{k, k, &k, []Private{k}},
		"any":               []any{k}, "array": [1]Private{k}, "reflected": reflect.ValueOf(k),
		"reflected field": reflect.ValueOf(holder{hidden: k}),
		"error":           fmt.Errorf("key %v", k),
	}
	for name, v := range values {
		for verb := rune('A'); verb <= 'z'; verb++ {
			for _, flags := range []string{"", "+", "#", " ", "0", "-", "+#", "# ", "40", ".3"} {
				checkHidden(t, k, name+" %"+flags+string(verb),
					fmt.Sprintf("%"+flags+string(verb), v))
			}
		}
	}
}

func TestPrivateKeyPrintsAsRedacted(t *testing.T) {
	k := generate(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b",
		"%c", "%U", "%e", "%t", "%z"} {
		if got := fmt.Sprintf(verb, k); got != "redacted" {
			t.Errorf("%s: %q", verb, got)
		}
	}
	if k.String() != "redacted" || k.GoString() != "redacted" {
		t.Error("String or GoString is not redacted")
	}
}

func TestNoEncoderShowsThePrivateKey(t *testing.T) {
	k := generate(t)
	value := holder{k, k, &k, []Private{k}}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil),
		slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("made", "key", k, "holder", value, "pointer", &k,
			"keys", map[string]Private{"a": k})
	}
	checkHidden(t, k, "slog", log.String())
	b, err := json.Marshal(map[string]any{"key": k, "holder": value})
	errtest.Must(t, err)
	checkHidden(t, k, "json", string(b))
	if !strings.Contains(string(b), `"key":"redacted"`) ||
		!strings.Contains(log.String(), "key=redacted") {
		t.Errorf("not redacted by name: %s %s", b, log.String())
	}
}

func checkHidden(t *testing.T, k Private, where, text string) {
	t.Helper()
	for _, s := range spellings(k) {
		if strings.Contains(text, s) {
			t.Fatalf("%s shows the key", where)
		}
	}
}

// Control: the check with spellings finds a key that is not protected.
func TestSpellingsFindAnOpenKey(t *testing.T) {
	k := generate(t)
	b := k.Bytes()
	for _, verb := range []string{"%v", "%x", "%X", "%s", "%#v", "%o", "%b"} {
		text, found := fmt.Sprintf(verb, b[:]), false
		for _, s := range spellings(k) {
			found = found || strings.Contains(text, s)
		}
		if !found {
			t.Errorf("an open key printed with %s is not found", verb)
		}
	}
}

func TestPublicOfKnownPair(t *testing.T) {
	// RFC 7748 section 6.1, Alice.
	priv, err := hex.DecodeString(
		"77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
	errtest.Must(t, err)
	want := "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
	k := newPrivate([Size]byte(priv))
	if got := k.Public(); hex.EncodeToString(got[:]) != want {
		t.Errorf("public key %x, want %s", got[:], want)
	}
}

func TestZeroPrivate(t *testing.T) {
	var k Private
	if !k.IsZero() || k.Public() != (Public{}) || k.Bytes() != [Size]byte{} ||
		fmt.Sprint(k) != "redacted" {
		t.Error("the zero key is not empty or not redacted")
	}
	if g := generate(t); g.IsZero() || g.Equal(k) || !g.Equal(g) {
		t.Error("a generated key is zero, or Equal is wrong")
	}
}

func FuzzPublic(f *testing.F) {
	f.Add([]byte("hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Public
		if p.UnmarshalText(text) == nil && p.String() != string(text) {
			t.Errorf("%q and %q are the same key", text, p)
		}
	})
}

func generate(t *testing.T) Private {
	t.Helper()
	k, err := Generate()
	errtest.Must(t, err)
	return k
}
