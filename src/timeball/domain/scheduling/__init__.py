"""timeball.domain.scheduling"""
