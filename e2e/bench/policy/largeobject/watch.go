package largeobject

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// apiWatch watches all objects of a kind without decoding them. It shows when the API server sent
// an edit. veild takes the rest of an edit's time.
type apiWatch struct {
	cancel context.CancelFunc
	frames chan apiFrame
	err    chan error
}

// apiFrame is an event of at most maxEdit bytes, and the time at which it arrived. Larger events
// are dropped, because only small objects are edited.
type apiFrame struct {
	at      time.Time
	content []byte
}

// maxEdit is the size in bytes of the largest event that may be an edit.
const maxEdit = 64 << 10

// watchAPI begins a watch of the objects at a path of the API server. The watch receives only new
// events. The caller closes it.
func watchAPI(ctx context.Context, cfg *rest.Config, path string) (*apiWatch, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	answer, err := fromNow(ctx, client, cfg.Host+path)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}

	w := &apiWatch{cancel: cancel, frames: make(chan apiFrame, 64), err: make(chan error, 1)}
	go func() {
		defer answer.Body.Close()
		w.err <- w.read(ctx, answer.Body)
	}()
	return w, nil
}

// fromNow begins a watch at the revision of a list of one object. A watch without a revision would
// begin with all objects.
func fromNow(ctx context.Context, client *http.Client, address string) (*http.Response, error) {
	list, err := get(ctx, client, address+"?limit=1&fieldSelector=metadata.name%3D"+edited,
		"application/json")
	if err != nil {
		return nil, err
	}
	defer list.Body.Close()
	var head struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.NewDecoder(list.Body).Decode(&head); err != nil {
		return nil, err
	}
	return get(ctx, client, address+"?watch=1&resourceVersion="+head.Metadata.ResourceVersion,
		"application/vnd.kubernetes.protobuf;stream=watch")
}

func get(ctx context.Context, client *http.Client, address, accept string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	answer, err := client.Do(request)
	if err == nil && answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, errors.New(answer.Status)
	}
	return answer, err
}

// read reads events until the watch ends. Each event follows its length in four bytes, big endian.
func (w *apiWatch) read(ctx context.Context, body io.Reader) error {
	in := bufio.NewReader(body)
	for {
		var header [4]byte
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return err
		}
		n := int64(binary.BigEndian.Uint32(header[:]))
		if n > maxEdit {
			if _, err := io.CopyN(io.Discard, in, n); err != nil {
				return err
			}
			continue
		}
		content := make([]byte, n)
		if _, err := io.ReadFull(in, content); err != nil {
			return err
		}
		select {
		case w.frames <- apiFrame{time.Now(), content}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sent waits for the event that contains mark and returns its time of arrival. It drops earlier
// events.
func (w *apiWatch) sent(ctx context.Context, mark string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		select {
		case f := <-w.frames:
			if bytes.Contains(f.content, []byte(mark)) {
				return f.at, nil
			}
		case err := <-w.err:
			return time.Time{}, fmt.Errorf("watch for edit %s: %w", mark, err)
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("watch for edit %s: %w", mark, context.Cause(ctx))
		}
	}
}

// Close ends the watch.
func (w *apiWatch) Close() { w.cancel() }
