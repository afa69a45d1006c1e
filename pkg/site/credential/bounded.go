package credential

import (
	"errors"
	"io"
	"net/http"
)

// maxAnswer bounds an answer of a site's API server, bytes. All that a site may state takes less.
const maxAnswer = 32 << 20

var errAnswer = errors.New("the answer of the site's API server is too long")

// bounded is a transport that ends an answer after maxAnswer bytes.
type bounded struct{ next http.RoundTripper }

func wrapBounded(next http.RoundTripper) http.RoundTripper { return bounded{next} }

// RoundTrip sends a request.
func (b bounded) RoundTrip(q *http.Request) (*http.Response, error) {
	r, err := b.next.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	r.Body = &boundedBody{ReadCloser: r.Body, room: maxAnswer}
	return r, nil
}

type boundedBody struct {
	io.ReadCloser
	room int
}

// Read reads a part of the answer.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.room <= 0 {
		return 0, errAnswer
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.room)])
	b.room -= n
	return n, err
}
