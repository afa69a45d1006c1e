package apifeed

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"google.golang.org/protobuf/encoding/protowire"
)

// ServeHTTP answers lists and watches.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	away, k, handler, cuts := f.away, f.kinds[r.URL.Path], f.handlers[r.URL.Path], f.cuts
	f.mu.Unlock()
	query := r.URL.Query()
	switch {
	case away:
		panic(http.ErrAbortHandler)
	case handler != nil:
		handler.ServeHTTP(w, r)
	case k == nil || r.Method != http.MethodGet:
		http.NotFound(w, r)
	case query.Get("watch") != "":
		f.watch(w, r, k, cuts)
	case query.Get("limit") == "1":
		f.head(w, k)
	default:
		http.Error(w, "the feed has no plain lists", http.StatusBadRequest)
	}
}

// head answers with a list without objects that has the current revision.
func (f *Feed) head(w http.ResponseWriter, k *kind) {
	f.mu.Lock()
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(f.revision)}
	f.mu.Unlock()
	b, err := meta.Marshal()
	var message []byte
	if err == nil {
		message, err = encode(unknownOf(k.bookmark(), "List",
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(message)
}

// watch sends the initial events, if the client requests them, and then the events after its
// revision until the request ends. cuts is the number of cuts before the request.
func (f *Feed) watch(w http.ResponseWriter, r *http.Request, k *kind, cuts int) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	at, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		at, err = f.list(r.Context(), w, r.URL.Path, k)
	}

	for err == nil {
		var frames [][]byte
		var changed <-chan struct{}
		frames, at, changed, err = f.after(k, at, cuts)
		for _, frame := range frames {
			if err == nil {
				_, err = w.Write(frame)
			}
		}
		if err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil || changed == nil {
			break
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// list sends the initial events of a kind and the bookmark after them. It returns their revision.
func (f *Feed) list(ctx context.Context, w http.ResponseWriter, path string,
	k *kind) (revision int, err error) {
	f.mu.Lock()
	revision = f.revision
	keys := slices.Sorted(maps.Keys(k.initial))
	frames := make([][]byte, len(keys), len(keys)+1)
	for i, key := range keys {
		frames[i] = k.initial[key]
	}
	var h *hold
	if f.hold != nil && f.hold.path == path {
		h, f.hold = f.hold, nil
	}
	f.mu.Unlock()

	end := k.bookmark()
	end.SetResourceVersion(strconv.Itoa(revision))
	end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	message, err := encode(end)
	if err != nil {
		return 0, err
	}
	for i, frame := range append(frames, frameOf(watch.Bookmark, message)) {
		if h != nil && i == h.after {
			if err := h.wait(ctx, w); err != nil {
				return 0, err
			}
		}
		if _, err := w.Write(frame); err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// wait sends what was written, and returns when the list may go on.
func (h *hold) wait(ctx context.Context, w http.ResponseWriter) error {
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	close(h.reached)
	select {
	case <-h.released:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// after returns the events of a kind after a revision, the revision of the last one, and a channel
// that is closed at the next change. The channel is nil if the watch ends after these events.
func (f *Feed) after(k *kind, revision, cuts int) (frames [][]byte, last int,
	changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.cuts != cuts:
		return nil, 0, nil, http.ErrAbortHandler
	case revision < k.compacted:
		frame, err := expired()
		return [][]byte{frame}, 0, nil, err
	}

	first, _ := slices.BinarySearchFunc(k.log, revision+1,
		func(e event, revision int) int { return e.revision - revision })
	for _, e := range k.log[first:] {
		frames, revision = append(frames, e.frame), e.revision
	}
	return frames, revision, f.changed, nil
}

// expired returns the event of the error that a revision is too old.
func expired() ([]byte, error) {
	message, err := encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: metav1.StatusReasonExpired,
		Message: "too old resource version", Code: http.StatusGone})
	return frameOf(watch.Error, message), err
}
