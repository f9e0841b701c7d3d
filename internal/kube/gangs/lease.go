// SPDX-License-Identifier: Apache-2.0

// Package gangs suspends and resumes the ranks of a job on all nodes together. Each node watches one Lease
// for each group that has ranks on it, writes to it as package gang decides, and tells its daemon when to
// hold the ranks.
package gangs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"xsched/internal/kube/gang"
)

// Label marks the leases of gangs, and Annotation has their record.
const (
	Label      = "xsched.dev/gang"
	Annotation = "xsched.dev/gang"
)

// maxRecord bounds an annotation that is read.
const maxRecord = 64 << 10

// content is the annotation of a lease.
type content struct {
	Namespace string `json:"namespace"`
	Group     string `json:"group"`
	gang.Record
}

// Name returns the name of a group's lease. A group's name need not be a DNS name, and "a-b" in "c" differs
// from "a" in "b-c".
func Name(k gang.Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	return "gang-" + hex.EncodeToString(sum[:16])
}

// read returns the record of a lease.
func read(k gang.Key, l *coordinationv1.Lease) (gang.Record, error) {
	text := l.Annotations[Annotation]
	if len(text) > maxRecord {
		return gang.Record{}, fmt.Errorf("lease %s has %d bytes; delete it", l.Name, len(text))
	}
	var c content
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return gang.Record{}, fmt.Errorf("lease %s has no record of a gang: %w; delete it", l.Name, err)
	}
	if (gang.Key{Namespace: c.Namespace, Group: c.Group}) != k {
		return gang.Record{}, fmt.Errorf("lease %s is about %s/%s instead of %s; delete it", l.Name, c.Namespace, c.Group, k)
	}
	c.Version = l.ResourceVersion
	return c.Record, nil
}

// lease returns the lease with a record. What it says beside the annotation is for people.
func lease(k gang.Key, by string, r gang.Record) (*coordinationv1.Lease, error) {
	text, err := json.Marshal(content{k.Namespace, k.Group, r})
	if err != nil {
		return nil, err
	}
	now, last := metav1.NowMicro(), now().Wall
	for _, a := range r.Asks {
		last = max(last, a.Until)
	}
	seconds := int32(min((last-now.UnixNano())/int64(time.Second)+1, 1<<30))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(k), ResourceVersion: r.Version,
			Labels: map[string]string{Label: "true"}, Annotations: map[string]string{Annotation: string(text)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &by, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, nil
}

// Get reads the record of a group; a group without a lease has an empty one. err is as of the API server.
func Get(ctx context.Context, leases coordinationclient.LeaseInterface, k gang.Key) (gang.Record, error) {
	l, err := leases.Get(ctx, Name(k), metav1.GetOptions{})
	if err != nil {
		return gang.Record{}, err
	}
	return read(k, l)
}

// Put writes the record of a group if the version is still the present one, and returns its new version.
func Put(ctx context.Context, leases coordinationclient.LeaseInterface, k gang.Key, by string, r gang.Record) (gang.Record, error) {
	l, err := lease(k, by, r)
	if err != nil {
		return r, err
	}
	if r.Version == "" {
		l, err = leases.Create(ctx, l, metav1.CreateOptions{})
	} else {
		l, err = leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	if err == nil {
		r.Version = l.ResourceVersion
	}
	return r, err
}
