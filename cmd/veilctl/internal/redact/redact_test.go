package redact_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

const (
	public  = "mJLSJPVW9uOCfdbDrH0dNJ3x/YH10Ht548IAg99J2Xw="
	private = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	hexKey  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	jwt     = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXRoaXM"
)

var pem = "-----BEGIN EC " +
	"PRIVATE KEY-----\nMHcCAQEEIBf0yPq3pXlXx1cJYdYpGk5oAAAAAAAAAAAAAAAAAAAAAAAA\nMHcCAQEEIBf0\n-----END EC " + "PRIVATE KEY-----"

// Each secret is removed in all its usual places, and the text around it stays.
func TestEachSecretIsRemoved(t *testing.T) {
	r := redact.New([]string{public}, []string{"literal-of-the-user"})
	encoded := base64.StdEncoding.EncodeToString([]byte(pem))

	for name, tt := range map[string]struct{ in, secret, want string }{
		"a WireGuard key in a log": {"set key " + private + " on veil0", private,
			"set key REDACTED on veil0"},
		"in JSON": {`{"k":"` + private + `","n":1}`, private,
			`{"k":"REDACTED","n":1}`},
		"in wg showconf": {"PrivateKey = " + private + "\nListenPort = 51820",
			private, "PrivateKey = REDACTED\nListenPort = 51820"},
		"named as private, known as none": {"private_key=" + public, public,
			"private_key=REDACTED"},
		"of the configuration socket": {"private_key=" + hexKey + "\nlisten_port=1", hexKey,
			"private_key=REDACTED\nlisten_port=1"},
		"hexadecimal anywhere": {"got " + hexKey + ", " + hexKey, hexKey,
			"got REDACTED, REDACTED"},
		"a token": {"Authorization: Bearer " + jwt + "\nnext", jwt,
			"\nnext"},
		"a token by itself": {"err=" + jwt + " end", jwt, "err=REDACTED end"},
		"a kubeconfig's token": {"user:\n  token: abc-def-123\n  name: x", "abc-def-123",
			"user:\n  token: REDACTED\n  name: x"},
		"a token in JSON in JSON": {`"{\"token\":\"opaque123\",\"a\":1}"`, "opaque123",
			`\"a\":1}"`},
		"a bootstrap token": {"kubeadm join --token abcdef.0123456789abcdef x",
			"abcdef.0123456789abcdef", "kubeadm join --token REDACTED x"},
		"a bootstrap token by itself": {"used abcdef.0123456789abcdef.",
			"abcdef.0123456789abcdef", ""},
		"a private key":         {"a\n" + pem + "\nb", "MHcCAQEEIBf0", "a\nREDACTED\nb"},
		"one that is cut off":   {"a\n" + pem[:80], "MHcCAQEEIBf0", "a\nREDACTED"},
		"one that began before": {pem[40:] + "\nb", "AAAAAAAA\nMHcC", "REDACTED\nb"},
		"one in JSON": {`{"x":"` + strings.ReplaceAll(pem, "\n", `\n`) + `"}`,
			"MHcCAQEEIBf0", `{"x":"REDACTED"}`},
		"client-key-data": {"client-key-data: " + encoded + "\nname: a",
			encoded[20:60], "client-key-data: REDACTED\nname: a"},
		"base64 of PEM anywhere": {"x " + encoded + " y", encoded[20:60], "x REDACTED y"},
		"a password in an address": {"https://user:hunter22@host/", "hunter22",
			"https://user:REDACTED@host/"},
		"a password in quotes": {`password: "a b c"`, "a b c", "password: REDACTED"},
		"in single quotes": {`passphrase='a b c' x`, "a b c",
			"passphrase=REDACTED x"},
		"an option": {"--etcd-password s3cr3t --v=1", "s3cr3t",
			"--etcd-password REDACTED --v=1"},
		"what the user's own config has": {"said literal-of-the-user twice", "literal-of-the-user",
			"said REDACTED twice"},
	} {
		t.Run(name, func(t *testing.T) {
			got, n := r.Text([]byte(tt.in))
			if strings.Contains(string(got), tt.secret) || n == 0 {
				t.Errorf("%d taken out, %q is in %q", n, tt.secret, got)
			}
			if !strings.Contains(string(got), tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			again, n := r.Text(got)
			if string(again) != string(got) {
				t.Errorf("a second time takes %d more: %q", n, again)
			}
		})
	}
}

// Facts that a bug report needs are not removed.
func TestBugReportKeepsFactsThatAreNotSecret(t *testing.T) {
	r := redact.New([]string{public}, []string{"short"})
	for _, text := range []string{
		"publicKey: " + public,
		"image sha256:" + hexKey,
		"containerID: containerd://" + hexKey,
		"tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token",
		"the service account token could not be read",
		"secretName: veild-token",
		"short",
		"automountServiceAccountToken: true\nenableServiceLinks: false",
		"time=2026-11-21T15:00:00Z level=INFO msg=\"tunnels changed\" created=1",
		"kube-system/veild-7d4b9 10.244.0.1/24 fd42:1:0:1::/64 v1.36.3+k3s1.0123456789abcdef",
	} {
		if got, n := r.Text([]byte(text)); string(got) != text || n != 0 {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestObject(t *testing.T) {
	const in = `{"data":{"veild.yaml":"mtu: 1400","password":"hunter22"},"env":[{"name":"A_TOKEN","value":"opaque"},{"name":"MTU","value":"1400"}],
		"spec":{"serviceAccountToken":{"path":"token"},"tokenFile":"/a","automountServiceAccountToken":true,"n":7,"list":["x ` + private + `"]}}`
	var v any
	errtest.Must(t, json.Unmarshal([]byte(in), &v))
	out, n := redact.New(nil, nil).Object(v)
	b, err := json.Marshal(out)
	errtest.Must(t, err)
	const want = `{"data":{"password":"REDACTED","veild.yaml":"mtu: 1400"},"env":[{"name":"A_TOKEN","value":"REDACTED"},{"name":"MTU","value":"1400"}],` +
		`"spec":{"automountServiceAccountToken":true,"list":["x REDACTED"],"n":7,"serviceAccountToken":{"path":"token"},"tokenFile":"/a"}}`
	if string(b) != want || n != 3 {
		t.Errorf("%d taken out:\n%s\nwant\n%s", n, b, want)
	}
}

// A key is removed regardless of the text around it, and nothing fails.
func FuzzText(f *testing.F) {
	f.Add([]byte("a "), []byte("\n"))
	f.Add([]byte(pem[:40]), []byte("token: \"\\\""))
	f.Add([]byte("sha256:"), []byte("://"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		r := redact.New([]string{public}, nil)
		text := append(append(append([]byte{}, before...), " "+private+" "...), after...)
		out, n := r.Text(text)
		if strings.Contains(string(out), private) || n == 0 {
			t.Errorf("the key is still in %q", out)
		}
	})
}
