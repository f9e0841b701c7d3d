// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"xsched/internal/kube/cluster"
)

const (
	// keepVerdict is how long a revoked right lasts at most. Without it each frame of a live view would cost
	// the API server two reviews.
	keepVerdict = 10 * time.Second
	// keepFailure is short: requests that waited for a failed review shall not each wait for one of their own.
	keepFailure = time.Second
	// reviewLimit bounds both reviews of a token: a viewer rather gets an error than no answer.
	reviewLimit = 5 * time.Second
	// maxVerdicts bounds the memory for tokens, also for wrong ones: 1,024 of about 200 bytes.
	maxVerdicts = 1024
	// maxToken is above the length of any token of a service account, which is about 1 KiB.
	maxToken = 8 << 10
)

// Reviews a second. Tokens that passed before have a limit of their own: wrong ones can't use it up.
const (
	newReviews   = 5
	knownReviews = 20
)

// Refusals of a request.
var (
	errNobody   = errors.New("the token is not one of a viewer; create one with the audience " + cluster.ViewAudience)
	errNoRight  = errors.New("not allowed to get " + cluster.ViewResource + "." + cluster.ViewGroup + " of this node; ask for the role xsched-viewer")
	errBusy     = errors.New("too many requests; try again later")
	errNoAnswer = errors.New("the API server does not answer who may view")
)

// access decides by reviews of the API server who may view a node.
type access struct {
	node   string
	client kubernetes.Interface
	keep   time.Duration // a verdict

	fresh, known *rate.Limiter

	mu       sync.Mutex
	verdicts map[[sha256.Size]byte]*verdict
}

// verdict is the answer about a token. A second request with the token waits for the review of the first.
type verdict struct {
	mu    sync.Mutex
	until time.Time
	who   string // empty: it never passed
	err   error
}

func newAccess(node string, client kubernetes.Interface) *access {
	return &access{
		node: node, client: client, keep: keepVerdict, verdicts: map[[sha256.Size]byte]*verdict{},
		fresh: rate.NewLimiter(newReviews, 4*newReviews), known: rate.NewLimiter(knownReviews, 4*knownReviews),
	}
}

// check returns who has a token and may view, else a refusal.
func (a *access) check(ctx context.Context, token string) (who string, err error) {
	if token == "" || len(token) > maxToken {
		return "", errNobody
	}
	v := a.verdict(sha256.Sum256([]byte(token)))
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if now.Before(v.until) {
		if v.err != nil {
			return "", v.err
		}
		return v.who, nil
	}
	budget := a.fresh
	if v.who != "" {
		budget = a.known
	}
	if !budget.AllowN(now, 1) {
		return "", errBusy
	}
	who, err = a.review(ctx, token)
	v.err, v.until = err, now.Add(a.keep)
	if errors.Is(err, errNoAnswer) {
		v.until = time.Now().Add(keepFailure)
	} else {
		v.who = who
	}
	return who, err
}

// verdict returns what is known about a token.
func (a *access) verdict(sum [sha256.Size]byte) *verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.verdicts[sum]; v != nil {
		return v
	}
	if len(a.verdicts) >= maxVerdicts {
		clear(a.verdicts) // costs each present viewer one review
	}
	v := &verdict{}
	a.verdicts[sum] = v
	return v
}

// review asks the API server whose token it is, and whether that user may view this node.
func (a *access) review(ctx context.Context, token string) (who string, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	t, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{cluster.ViewAudience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	// An authenticator that knows no audiences leaves them out: its token is meant for the API server.
	if !t.Status.Authenticated || !slices.Contains(t.Status.Audiences, cluster.ViewAudience) {
		return "", errNobody
	}
	user := &t.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	s, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "get", Group: cluster.ViewGroup, Version: "v1", Resource: cluster.ViewResource, Name: a.node,
			},
		},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNoAnswer, err)
	case !s.Status.Allowed:
		return "", errNoRight
	}
	return user.Username + credential(user), nil
}

// credential tells the tokens of one account from each other: all people who view have the same account.
func credential(user *authenticationv1.UserInfo) string {
	if id := user.Extra["authentication.kubernetes.io/credential-id"]; len(id) > 0 {
		return " " + id[0]
	}
	return ""
}
