package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Bounds of the client.
const (
	requestTimeout = 15 * time.Second
	maxStatus      = 64 << 20 // bytes of a status; 1,000 peers have about one MiB
	maxReason      = 4 << 10  // bytes of the text of an error
)

// noSuchPath is the answer of http.NotFound.
const noSuchPath = "404 page not found"

// Fetch reads the status of the veild behind the admin socket at path. If no veild listens there,
// the error matches fs.ErrNotExist or syscall.ECONNREFUSED.
func Fetch(ctx context.Context, path string) (telemetry.Status, error) {
	body, err := FetchPage(ctx, path, telemetry.StatusPath)
	if err != nil {
		return telemetry.Status{}, err
	}
	return DecodeStatus(body)
}

// FetchPage returns the JSON of any page of the admin socket. page is a path and may have a query.
// Its errors are as for Fetch, ErrNoPage and ErrNotHere.
func FetchPage(ctx context.Context, path, page string) ([]byte, error) {
	return fetch(ctx, path, http.MethodGet, page, nil)
}

// PostPage sends body to a page whose path begins with "POST ", and returns its answer like
// FetchPage.
func PostPage(ctx context.Context, path, page string, body []byte) ([]byte, error) {
	method, page, _ := strings.Cut(page, " ")
	return fetch(ctx, path, method, page, body)
}

func fetch(ctx context.Context, path, method, page string, posted []byte) ([]byte, error) {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://veild"+page, bytes.NewReader(posted))
	if err != nil {
		return nil, fmt.Errorf("ask veild: %w", err)
	}

	resp, err := (&http.Client{Transport: transport}).Do(req)
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // Users know neither the method nor the URL.
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("veild does not run on this node: no process listens on %s. If it "+
			"ran since boot, data path and guard stay in force: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("only root may use the admin socket: run veilctl as root: %w", err)
	case err != nil:
		return nil, fmt.Errorf("ask veild: %w", err)
	}
	defer resp.Body.Close()

	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus+1))
	if err != nil {
		return nil, fmt.Errorf("ask veild: %w", err)
	}
	if len(body) > maxStatus {
		return nil, fmt.Errorf("the answer of veild is longer than %d MiB", maxStatus>>20)
	}

	text := strings.TrimSpace(string(body[:min(len(body), maxReason)]))
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound:
		if text == noSuchPath {
			text = fmt.Sprintf("veild has no page %s: it is older or newer than this program", page)
		}
		return nil, pageError{text, ErrNoPage}
	case http.StatusMisdirectedRequest:
		return nil, pageError{text, ErrNotHere}
	}

	return nil, fmt.Errorf("veild answered %s: %s", resp.Status, text)
}

// pageError is the text of the error that a page returned. It matches is.
type pageError struct {
	text string
	is   error
}

func (e pageError) Error() string { return e.text }

func (e pageError) Unwrap() error { return e.is }

// DecodeStatus reads the JSON of a Status; fields that a newer veild added are ignored.
func DecodeStatus(data []byte) (telemetry.Status, error) {
	var s telemetry.Status
	if err := json.Unmarshal(data, &s); err != nil {
		return telemetry.Status{}, fmt.Errorf("status of veild: %w", err)
	}
	return s, nil
}
